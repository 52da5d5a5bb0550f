"""What docs/kubernetes.md and the chart's README have users type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import helm_python
import pytest
import yaml
from support.kubernetes.chart import (
    CHART,
    RELEASE,
    ROOT_DIR,
    Object,
    find,
    render,
    validate,
)

pytestmark = pytest.mark.engines

PAGE = ROOT_DIR / "docs" / "kubernetes.md"


def commands(program: str) -> Iterator[list[str]]:
    """The words of each such command."""
    for path in (PAGE, CHART / "README.md"):
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(rf"^ *((?:\$ )?{program} .*)$", text, re.MULTILINE):
            yield shlex.split(line.removeprefix("$ "))


INSTALLS = [words for words in commands("helm") if words[1] == "install"]


def installed(words: list[str]) -> list[Object]:
    """The objects that such a command makes."""
    _, _, release, chart, *options = words
    assert release == RELEASE
    assert (ROOT_DIR / chart).samefile(CHART)
    assert set(options[::2]) == {"--set"}
    return render(**helm_python.parse_set_string(",".join(options[1::2])))


@pytest.mark.parametrize("words", INSTALLS, ids=lambda words: shlex.join(words[4:]))
def test_kubernetes_takes_what_is_installed(words: list[str]) -> None:
    for one in installed(words):
        validate(one)


def test_the_pages_have_commands() -> None:
    assert len(INSTALLS) >= 4


@pytest.mark.parametrize("tag", ["1", "20261125", "0", "v1.2", "latest"])
def test_an_image_s_tag_is_as_it_was_typed(tag: str) -> None:
    """Helm takes some for numbers."""
    typed = f"image.repository=example.org/train,image.tag={tag}"
    pod = find(render(**helm_python.parse_set_string(typed)), "Job")["spec"]["template"]
    images = {one["image"] for one in pod["spec"]["containers"]}

    assert images == {f"example.org/train:{tag}"}


def test_what_kubectl_is_asked_for_is_there() -> None:
    scaled = [words for words in commands("kubectl") if words[1] == "scale"]
    shown = [words for words in commands("kubectl") if words[1] == "logs"]
    assert scaled
    assert shown
    elastic = installed(
        next(words for words in INSTALLS if "elastic.enabled=true" in words)
    )
    for _, _, kind, name, *_ in scaled:
        assert kind == "statefulset"
        assert find(elastic, "StatefulSet")["metadata"]["name"] == name
    pod = find(installed(INSTALLS[0]), "Job")["spec"]["template"]
    for words in shown:
        label, value = words[words.index("-l") + 1].split("=")
        assert pod["metadata"]["labels"][label] == value
        container = words[words.index("-c") + 1]
        assert container in [one["name"] for one in pod["spec"]["containers"]]


def test_values_for_queues_are_valid() -> None:
    (text,) = re.findall(r"```(?:yaml)?\n(labels: .*?)```", PAGE.read_text(), re.DOTALL)
    job = find(render(**yaml.safe_load(text)), "Job")

    validate(job)
    assert job["spec"]["suspend"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
