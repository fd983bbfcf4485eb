"""A page that moved, in a browser: it leads on and keeps what stands behind its address."""

from string import Template

import kl_redirects
import pytest
from sitechecks.browsing import watched


@pytest.mark.browser
@pytest.mark.parametrize("scripts", [True, False])
def test_a_moved_page_leads_on_with_and_without_scripts(chrome, tmp_path, scripts):
    new = tmp_path / "parts" / "new.html"
    new.parent.mkdir()
    new.write_text("<!doctype html><title>New</title><h1 id='section'>New</h1>")
    old = tmp_path / "notebooks" / "old.html"
    old.parent.mkdir()
    to = kl_redirects.address("notebooks/old", "parts/new")
    template = Template(kl_redirects.TEMPLATE.read_text(encoding="utf-8"))
    old.write_text(template.substitute(to_uri=to), encoding="utf-8")
    with watched(chrome, java_script_enabled=scripts) as (page, faults):
        page.goto(old.as_uri() + "?a=1#section", wait_until="commit")
        # A figure's state stands there; only a script can carry it over.
        page.wait_for_url("**/parts/new.html" + ("?a=1#section" if scripts else ""))
        assert faults == []
