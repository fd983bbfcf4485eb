# Every command sets up what it needs in .venv and works from a bare clone.
# Options: TORCH=cpu takes PyTorch's CPU build, PORT=8000 is where `make serve` listens.
PYTHON ?= python3
export TORCH PORT

COMMANDS := book test checks bench lab serve pdf epub lock clean
.PHONY: $(COMMANDS)
$(COMMANDS):
	@$(PYTHON) tools/make.py $@ $(ARGS)
