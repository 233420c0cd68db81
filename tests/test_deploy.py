"""The container's files: the chart as Kubernetes would take it, the composition, and what the image copies.

Helm and an engine are not needed: the chart's templates use `if`, `range` and values only, which are rendered
here by Jinja, and Kubernetes' own schemas judge the result.
"""

import re
from pathlib import Path
from typing import Any

import jinja2
import kubernetes_validate
import pytest
import yaml

import shoal

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.29"


def rendered(**changes: Any) -> dict[str, dict[str, Any]]:
    """The chart's objects by kind."""
    values = yaml.safe_load((DEPLOY / "chart/values.yaml").read_text()) | changes
    release = {"Name": "shop", "Namespace": "live"}
    found = {}
    for path in sorted((DEPLOY / "chart/templates").iterdir()):
        one = yaml.safe_load(_as_jinja(path.read_text()).render(Values=values, Release=release))
        if one is not None:
            found[one["kind"]] = one
    return found


def _as_jinja(text: str) -> jinja2.Template:
    """A template of Helm's, as far as the chart uses that language."""
    ends: list[str] = []

    def tag(found: re.Match[str]) -> str:
        words = found[1].split()
        if words[0] == "range":
            ends.append("endfor")
            return f"{{%- for _ in {words[1][1:]} %}}"
        if words[0] == "if":
            ends.append("endif")
            return f"{{%- if {words[1][1:]} %}}"
        if words[0] in ("else", "end"):
            return "{%- else %}" if words[0] == "else" else f"{{%- {ends.pop()} %}}"
        assert len(words) == 1, found[0]
        return "{{ _ }}" if words[0] == "." else f"{{{{ {words[0][1:]} }}}}"

    text = re.sub(r"\{\{-?\s*(.*?)\s*\}\}", tag, text)
    assert not ends
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)


@pytest.mark.parametrize(
    "changes",
    [{}, {"secret": "shoal", "hosts": ["shop.example"]}, {"storage": {"size": "1Gi", "class": "fast"}}],
    ids=["file", "database", "class"],
)
def test_kubernetes_takes_the_chart(changes: dict[str, Any]) -> None:
    for one in rendered(**changes).values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    broken = rendered()["Deployment"]
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProbes"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_a_file_has_one_writer_and_a_database_several() -> None:
    found = rendered()
    spec = found["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert set(found) == {"Deployment", "PersistentVolumeClaim", "Service"}
    assert spec["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "shop"
    found = rendered(secret="shoal", hosts=["shop.example"])
    spec = found["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (3, "RollingUpdate")
    assert set(found) == {"Deployment", "PodDisruptionBudget", "Service"}
    (container,) = spec["template"]["spec"]["containers"]
    assert "--allow-host=shop.example" in container["args"]
    assert {one["name"] for one in container["env"]} == {"POD_IP", "STORE", "SHOAL_SESSION_SECRET"}
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 20  # what a server may take to stop
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/livez", "/readyz")


def test_versions_are_the_package_s() -> None:
    chart = yaml.safe_load((DEPLOY / "chart/Chart.yaml").read_text())
    values = yaml.safe_load((DEPLOY / "chart/values.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == values["image"]["tag"] == shoal.__version__


def test_the_image_copies_what_is_there_and_not_ignored() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert name.split("/")[0] in kept


def test_the_composition_names_what_is_there() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(found["services"]) == {"postgres", "key", "shoal", "prometheus", "grafana"}
    for one in found["services"].values():
        for port in one.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        for volume in one.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if "/" in source else source in found["volumes"]
        assert all(given["source"] in found["configs"] for given in one.get("configs", ()))
    for one in found["configs"].values():
        assert yaml.safe_load(one["content"])
