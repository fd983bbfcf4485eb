"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# No deadline: tests never time.  Derandomised: a red run is red again on the next machine.
settings.register_profile(
    "book",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("book")
