"""The manifests and the chart, as their tools render them, against the schemas of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.tools import DEPLOY, Document, documents, of_kind, program, run
from tests.docs.test_dashboards import KNOWN as METRICS

from antiphon.entrypoints.server.lifetime import LEAVE_S
from antiphon.entrypoints.server.serve import STREAM_END_S
from antiphon.entrypoints.settings import load

CHART = DEPLOY / "helm/antiphon"
SEVERAL = ("--values", str(CHART / "several-servers.yaml"))

pytestmark = pytest.mark.deploy


def kustomized(name: str) -> str:
    return run(program("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / name))


def templated(*options: str) -> str:
    return run(program("helm"), "template", "mine", str(CHART), *options)


def refusal(*options: str) -> str:
    with pytest.raises(AssertionError) as refused:
        templated(*options)
    return str(refused.value)


RENDERINGS = {
    "kustomize base": lambda: kustomized("base"),
    "kustomize postgres": lambda: kustomized("postgres"),
    "chart": lambda: templated(),
    "chart several": lambda: templated(*SEVERAL),
}
ALONE = ("kustomize base", "chart")
SHARING = ("kustomize postgres", "chart several")


@pytest.fixture(scope="module")
def rendered(request: pytest.FixtureRequest) -> list[Document]:
    return documents(RENDERINGS[request.param]())


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rendered", names, indirect=True)


def pods_of(found: Sequence[Document]) -> Iterator[Document]:
    for document in found:
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield document["spec"]["template"]["spec"]


def container_of(found: list[Document]) -> Document:
    pod = of_kind(found, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return container  # type: ignore[no-any-return]


def variables_of(container: Mapping[str, Any]) -> Mapping[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


@each(*RENDERINGS)
def test_kubernetes_accepts_each_object(rendered: list[Document]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="not installed")
    for document in rendered:
        validate.validate(document, validate.latest_version(), strict=True)


def test_helm_finds_nothing_to_improve() -> None:
    assert "0 chart(s) failed" in run(program("helm"), "lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--set", "replicas=2"), "/sealKeySecret"),
        (("--set", "autoscaling.enabled=true"), "/store/address"),
        (("--set", "store.address=postgresql://me:secret@db/x"), "/store/address"),
        (("--set", "replica=2"), "replica"),
        (("--set", "env.ANTIPHON_QUEUE_S=10"), "/env/ANTIPHON_QUEUE_S"),
        ((*SEVERAL, "--set", "persistence.enabled=true"), "/persistence/enabled"),
    ],
)
def test_the_chart_refuses_values_that_do_not_work(options: Sequence[str], why: str) -> None:
    assert why in refusal(*options)


@each(*RENDERINGS)
def test_the_server_accepts_its_settings(rendered: list[Document], tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(of_kind(rendered, "ConfigMap")["data"]["antiphon.toml"])
    assert load(file, variables_of(container_of(rendered)))


@each(*RENDERINGS)
def test_a_pod_has_no_rights_that_it_does_not_need(rendered: list[Document]) -> None:
    for pod in pods_of(rendered):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"].keys() == {"requests", "limits"}


@each(*RENDERINGS)
def test_a_pod_lives_until_its_server_has_shut_down(rendered: list[Document]) -> None:
    container = container_of(rendered)
    settings = load(None, {**variables_of(container), "ANTIPHON_CONFIG": ""})
    takes_s = max(settings.graceful_shutdown_s, settings.drain_delay_s) + STREAM_END_S + LEAVE_S
    pod = of_kind(rendered, "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > takes_s
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < settings.drain_delay_s


@each(*RENDERINGS)
def test_probes_ask_what_they_are_for(rendered: list[Document]) -> None:
    container = container_of(rendered)
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    paths = [container[kind]["httpGet"]["path"] for kind in kinds]
    assert paths == ["/livez", "/livez", "/readyz"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {container[kind]["httpGet"]["port"] for kind in kinds} <= ports.keys()
    settings = load(None, {**variables_of(container), "ANTIPHON_CONFIG": ""})
    assert ports == {"http": settings.port, "metrics": settings.admin_port}


@each(*ALONE)
def test_a_server_alone_keeps_its_data_in_a_volume(rendered: list[Document]) -> None:
    deployment = of_kind(rendered, "Deployment")["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"]["type"] == "Recreate"
    claim = of_kind(rendered, "PersistentVolumeClaim")["metadata"]["name"]
    volumes = deployment["template"]["spec"]["volumes"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": claim}} in volumes


@each(*SHARING)
def test_several_servers_share_the_store_and_the_seal_key(rendered: list[Document]) -> None:
    deployment = of_kind(rendered, "Deployment")["spec"]
    assert "replicas" not in deployment  # the autoscaler's
    variables = variables_of(container_of(rendered))
    assert variables["ANTIPHON_STORE"].startswith("postgresql://")
    [mount] = [
        mount
        for mount in container_of(rendered)["volumeMounts"]
        if variables["ANTIPHON_SEAL_KEY_FILE"].startswith(mount["mountPath"] + "/")
    ]
    volumes = {one["name"]: one for one in deployment["template"]["spec"]["volumes"]}
    assert volumes[mount["name"]]["secret"]["secretName"] == "antiphon"
    assert "persistentVolumeClaim" not in volumes["data"]
    assert not any(one["kind"] == "PersistentVolumeClaim" for one in rendered)


@each(*SHARING)
def test_the_autoscaler_goes_by_gauges_of_the_server(rendered: list[Document]) -> None:
    scaler = of_kind(rendered, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == of_kind(rendered, "Deployment")["metadata"]["name"]
    for metric in scaler["metrics"]:
        name = metric["pods"]["metric"]["name"]
        assert name in METRICS
        assert not name.endswith(("_total", "_bucket", "_sum", "_count"))


@each(*RENDERINGS)
def test_each_selector_finds_the_pods_of_the_server(rendered: list[Document]) -> None:
    labels = of_kind(rendered, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    found = {
        "Deployment": of_kind(rendered, "Deployment")["spec"]["selector"]["matchLabels"],
        "Service": of_kind(rendered, "Service")["spec"]["selector"],
        "NetworkPolicy": of_kind(rendered, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    }
    if any(one["kind"] == "PodDisruptionBudget" for one in rendered):
        budget = of_kind(rendered, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
        found["PodDisruptionBudget"] = budget
    for kind, selector in found.items():
        assert selector, kind
        assert selector.items() <= labels, kind


@each("kustomize postgres")
def test_the_database_is_reached_by_the_servers_alone(rendered: list[Document]) -> None:
    [policy] = [
        one["spec"]
        for one in rendered
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "antiphon-postgres"
    ]
    labels = of_kind(rendered, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    [rule] = policy["ingress"]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels
    own = of_kind(rendered, "NetworkPolicy")["spec"]["egress"]
    assert any(port["port"] == 5432 for one in own for port in one["ports"])


def test_no_file_holds_a_secret() -> None:
    for path in (DEPLOY / "kubernetes").rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            kind = document.get("kind") if isinstance(document, dict) else None
            assert kind != "Secret", path
