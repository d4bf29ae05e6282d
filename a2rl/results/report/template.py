"""Loads the templates of reports: what they show is printable, without secrets, and escaped as HTML.

Should a text of an agent become part of a page all the same, the page's policy keeps a browser from running or loading
it: only the scripts of the template run.
"""

import base64
import hashlib
import re

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from a2rl.core.printable import printable
from a2rl.core.secrets import scrub

SHARED = "a2rl.results.report"
"""The package with what all pages include, such as their style."""


def load_template(package: str) -> Template:
    """Returns the `page.html` of a package."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader(SHARED, ".")]),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    assert environment.loader is not None
    source, *_ = environment.loader.get_source(environment, "page.html")
    scripts = re.findall("<script>(.*?)</script>", source, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in digests)
    environment.globals["policy"] = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    return environment.get_template("page.html")


def _visible(value: object) -> object:
    """Returns a printable form of a value, which is then escaped as HTML. Markup is that of a template itself."""
    return value if isinstance(value, int | float | Markup) else printable(scrub(str(value)), lines=True)
