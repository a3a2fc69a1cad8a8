"""Build the services on the ports: plain calls, so that mypy checks each argument.

Nothing starts here, and nothing knows which adapters the settings chose.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from antiphon.application.input.history import LoadHistory
from antiphon.application.input.items import ReadItems
from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.model.describe_models import DescribeModels
from antiphon.application.model.output_bounds import OutputRoom
from antiphon.application.model.supervision import SuperviseModels
from antiphon.application.ports import AnswerRequest, OtherServers
from antiphon.application.resources.batches import operations
from antiphon.application.resources.batches.output_files import WriteFile
from antiphon.application.resources.batches.parts import BatchParts, WorkLimits
from antiphon.application.resources.batches.run import RunBatches
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.resources.embeddings import MakeEmbeddings
from antiphon.application.resources.files import CreateFile, FileLimits
from antiphon.application.resources.indexing import IndexFiles
from antiphon.application.resources.moderations import Moderate
from antiphon.application.resources.skills.contents import SkillContents
from antiphon.application.resources.skills.index import SkillIndex
from antiphon.application.resources.webhooks import CreateDeliveries
from antiphon.application.responses.activity import ReportActivity
from antiphon.application.responses.agents import RunAgents
from antiphon.application.responses.cancel import CancelResponse
from antiphon.application.responses.compact import CompactConversation
from antiphon.application.responses.count_tokens import CountTokens
from antiphon.application.responses.create import CallerBounds, CreateResponseService
from antiphon.application.responses.decide import Decide
from antiphon.application.responses.delete import DeleteResponse
from antiphon.application.responses.enter_session import EnterSession
from antiphon.application.responses.explain import ExplainResponse
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.idempotency import CreateOnce, IdempotencyKeys
from antiphon.application.responses.list import ListResponses
from antiphon.application.responses.list_input_items import ListInputItems
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import StartLimits, StartResponse
from antiphon.application.responses.thread import ReadThread
from antiphon.application.runs.diagnose_cache import DiagnoseCache
from antiphon.application.runs.jobs import Jobs
from antiphon.application.runs.plan_turns import PlanTurns, RecordSinks, RunFeatures
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.application.runs.readiness import CheckReady
from antiphon.application.runs.restore import RestoreRun, ResumeLimits
from antiphon.application.runs.run_response import MakeSequencer, RunResponse
from antiphon.application.runs.stop import StopRun
from antiphon.application.runs.until_shutdown import ShutdownSignal
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.telemetry.run_trace import KeepTraces
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.mcp import OpenMcpSessions
from antiphon.application.tools.outputs import ToolRoom
from antiphon.application.websocket.open_websockets import OpenWebSockets
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.http.api.batches import BatchServices
from antiphon.entrypoints.http.api.containers.routes import ContainerServices
from antiphon.entrypoints.http.api.containers.skills import SkillServices
from antiphon.entrypoints.http.api.conversations import ConversationServices
from antiphon.entrypoints.http.api.files import FileServices
from antiphon.entrypoints.http.api.services import Relay, Services
from antiphon.entrypoints.http.api.vector_stores import VectorStoreServices
from antiphon.entrypoints.http.console.state import ServerState
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.wire.in_process import InProcessRequests
from antiphon.entrypoints.http.wire.sse import KeepAlive
from antiphon.entrypoints.wiring import access, admission, code, images, media, stores, tools
from antiphon.entrypoints.wiring import traces as t
from antiphon.entrypoints.wiring import transport as w
from antiphon.entrypoints.wiring.relaying import relay_of, relaying


class Runs:
    """The services that run responses, also those that another server left behind."""

    def __init__(
        self,
        ports: Container,
        bounds: CallerBounds,
        keep_traces: KeepTraces,
        hosted_tools: Callable[[OtherServers | None], Sequence[ToolProvider]],
        bytes_in_work: BytesInWork,
        *,
        others: OtherServers | None,
    ) -> None:
        settings, store, log, owner = ports.settings(), ports.store(), ports.log(), ports.owner()
        sealer, tool_servers, ended_runs = ports.sealer(), ports.tool_servers(), ports.ended_runs()
        new_id, now, models = ports.new_id(), ports.now(), ports.models()
        substitutions = tools.tool_substitutions(settings, tool_servers)
        show_items = media.show_items(
            settings, ports.files(), ports.fetcher(), ports.read_pdf(), unseal=sealer.unseal
        )

        def prepare_turn(hosted: Sequence[ToolProvider]) -> PrepareTurn:
            return PrepareTurn(
                models,
                ReadItems(store),
                LoadHistory(store),
                show_items,
                tool_servers,
                salt=sealer.salt,
                hosted=hosted,
                tool_substitutions=substitutions,
            )

        # Neither a run that has begun, which goes on without a container that is elsewhere, nor the
        # prompt of an earlier response is relayed.
        prepare_anywhere = prepare_turn(hosted_tools(None))
        answers = ApprovalAnswers(store)
        self.active = admission.active_runs(settings)
        self.create: CreateResponseService
        """The service that sub-agents start with. It needs these, and is set after them."""
        agents = RunAgents(
            store, self.active, create=lambda: self.create, stop_run=lambda: self.stop
        )
        plan_turns = PlanTurns(
            show_items,
            sealer.seal,
            OpenMcpSessions(tool_servers, answers),
            budgets=tools.budgets(settings),
            sinks=RecordSinks(
                audit_log=ports.audit_log(), traces=keep_traces, propagation=ports.propagation()
            ),
            tool_room=ToolRoom(bytes_in_work),
            features=RunFeatures(
                programs=ports.programs(),
                agents=tools.agent_tools(settings, store, agents),
                guards=ports.guards(),
                diagnose=DiagnoseCache(prepare_anywhere, store, keep_traces),
            ),
        )
        jobs = Jobs(sealer.seal, sealer.unseal)
        self.expand_prompt = ExpandPrompt(ports.prompts())
        self.hosted_tools = hosted_tools(others)
        self.prepare_turn = prepare_turn(self.hosted_tools)
        self.prepare_response = PrepareResponse(
            self.prepare_turn,
            plan_turns,
            jobs,
            answers,
            can_resume=store.outlives_server,
            owner=owner,
            new_id=new_id,
            now=now,
        )
        self.make_sequencer = MakeSequencer(new_id=new_id, now=now, seal=sealer.seal)
        self.run_response = RunResponse(
            log,
            store,
            bounds.limits,
            deliveries=CreateDeliveries(ports.webhook_endpoints(), new_id=new_id, now=now),
            log_outputs=settings.log_outputs,
            max_run_s=settings.response_s,
            retry_s=settings.store_retry_s,
            report=None if ended_runs is None else ended_runs.add,
        )
        limits = ResumeLimits(max_attempts=settings.run_attempts, retry_s=settings.store_retry_s)
        self.restore = RestoreRun(
            self.expand_prompt,
            prepare_anywhere,
            plan_turns,
            jobs,
            store,
            log,
            self.make_sequencer,
            limits=limits,
        )
        self.stop = StopRun(store, self.active, self.restore, self.run_response, owner=owner)


class App:
    """A server without its sockets: what answers requests, probes and signals."""

    def __init__(
        self, ports: Container, index_files: IndexFiles, supervise_models: SuperviseModels
    ) -> None:
        settings, store, sealer, now = ports.settings(), ports.store(), ports.sealer(), ports.now()
        owner, new_id, files = ports.owner(), ports.new_id(), ports.files()
        bounds = admission.caller_bounds(settings, store, owner, now=now, clock=ports.clock())
        keep_traces = t.keep_traces(settings, store, sealer)
        self.models, self.supervise_models = ports.models(), supervise_models
        self.bytes_in_work = ports.bytes_in_work()
        supervise_models.share(OutputRoom(self.bytes_in_work))
        options = w.http_options(settings, self.models, self.bytes_in_work)
        self.transport = w.transport(settings, self.bytes_in_work)
        self.relaying = relaying(settings, owner, store, sealer, ports.peers())
        self.access = access.build_access(
            settings, ports.keys_file(), store, ports.issuer_keys(), sealer, now=now
        )
        self.conversations = ConversationServices(
            store, bounds.check_quota, options, seal=sealer.seal, new_id=new_id, now=now
        )
        limits = FileLimits(
            max_bytes=settings.max_file_bytes,
            quota_bytes=settings.keep_file_bytes,
            total_bytes=settings.keep_all_file_bytes,
        )
        self.files = FileServices(files, ports.vector_stores(), limits, new_id=new_id, now=now)
        sandboxes = ports.sandboxes()
        create_file = CreateFile(files, limits=limits, new_id=new_id, now=now)
        contents = SkillContents(files, create_file, now=now)
        check = code.check_container(settings, files, store, contents, sandboxes)
        self.skills = SkillServices(
            SkillIndex(store),
            contents,
            options,
            max_file_bytes=settings.max_file_bytes,
            new_id=new_id,
            now=now,
        )
        self.own_requests = InProcessRequests(
            access.refresh_caller(ports.keys_file(), store), dialect=options.dialect
        )
        self.run_batches, self.batches = build_batches(
            ports, limits, self.bytes_in_work, self.own_requests, options
        )
        self.containers = ContainerServices(sandboxes, check, files, self.relaying.client, options)
        self.vector_stores = vector_stores = VectorStoreServices(
            ports.vector_stores(),
            files,
            index_files,
            ports.embeddings(),
            options,
            new_id=new_id,
            now=now,
        )

        def hosted_tools(others: OtherServers | None) -> Sequence[ToolProvider]:
            find, search = vector_stores.find, vector_stores.search
            return [
                *tools.hosted_tools(
                    settings,
                    sandboxes,
                    self.containers.find,
                    check,
                    ports.web(),
                    find,
                    search,
                    others=others,
                ),
                *images.image_tools(settings, ports.image_generator(), files),
            ]

        self.runs = Runs(
            ports,
            bounds,
            keep_traces,
            hosted_tools,
            self.bytes_in_work,
            others=self.relaying.client,
        )
        relay = relay_of(self.relaying, self.runs.active)
        self.services = build_responses(ports, self.runs, bounds, keep_traces, options, relay=relay)
        self.check_ready = CheckReady(
            store, ports.files(), self.models, self.runs.active, clock=ports.clock()
        )
        self.server_state = ServerState(
            owner=owner,
            store_kind=stores.store_kind(settings),
            started_at=int(time.time()),
            keep_events_s=settings.keep_events_s,
            tool_labels=tools.labels_of(ports.tool_servers()),
            max_body_bytes=options.limits.max_bytes,
            max_media=settings.max_media,
            quotas=bounds.check_quota.quotas,
            limits=bounds.limits,
            store=store,
            runs=self.runs.active,
            admission=self.services.admission,
            check_ready=self.check_ready,
            describe_models=self.services.describe_models,
            streams=self.services.keepalive,
            websockets=self.services.websockets,
            connections=self.transport.connections,
            bytes_in_work=self.bytes_in_work,
            peers=ports.peers(),
        )


def build_batches(
    ports: Container,
    file_limits: FileLimits,
    bytes_in_work: BytesInWork,
    answer: AnswerRequest,
    options: HttpOptions,
) -> tuple[RunBatches, BatchServices]:
    """Return what runs batches, and what `/v1/batches` calls."""
    settings, batches, files = ports.settings(), ports.batches(), ports.files()
    new_id, now = ports.new_id(), ports.now()
    create_file = CreateFile(files, limits=file_limits, new_id=new_id, now=now)
    parts = BatchParts(
        batches=batches,
        files=files,
        answer=answer,
        write_file=WriteFile(batches, files, create_file, bytes_in_work, now=now),
        slots=FairQueue(settings.batch_lines),
        limits=WorkLimits(
            line_bytes=options.limits.max_bytes,
            file_bytes=file_limits.max_bytes,
            lines=settings.batch_lines,
            claim_s=settings.lease_s,
        ),
        new_id=new_id,
        now=now,
    )
    run = RunBatches(parts, keep_days=settings.keep_days)
    create = operations.CreateBatch(
        batches,
        files,
        run,
        limits=operations.BatchLimits(open_per_tenant=settings.max_batches),
        new_id=new_id,
        now=now,
    )
    return run, BatchServices(
        create=create,
        list=operations.ListBatches(batches),
        get=operations.GetBatch(batches),
        cancel=operations.CancelBatch(batches, run, now=now),
        options=options,
    )


def build_responses(
    ports: Container,
    runs: Runs,
    bounds: CallerBounds,
    keep_traces: KeepTraces,
    options: HttpOptions,
    *,
    relay: Relay | None,
) -> Services:
    """Return what `/v1/responses` and its relatives call."""
    settings, store, log, owner = ports.settings(), ports.store(), ports.log(), ports.owner()
    new_id, now = ports.new_id(), ports.now()
    answers = ApprovalAnswers(store)
    admit, get = admission.admission(settings), GetResponse(store, runs.active, answers)
    listed = ListResponses(store, runs.active, get, answers)
    follow = FollowResponse(log, store, ports.meter(), ports.bytes_in_work())
    start_limits = StartLimits(
        keep_days=settings.keep_days,
        max_waiting=settings.max_waiting,
        retry_s=settings.store_retry_s,
    )
    start = StartResponse(
        store,
        log,
        runs.active,
        runs.run_response,
        runs.make_sequencer,
        owner=owner,
        now=now,
        limits=start_limits,
    )
    claim = ClaimConversation(store, owner=owner)
    enter_session = EnterSession(store, claim, now=now)
    create = CreateResponseService(
        runs.expand_prompt,
        bounds,
        claim,
        enter_session,
        runs.prepare_response,
        start,
        runs.active,
        admit,
    )
    runs.create = create
    keys = IdempotencyKeys(store, owner=owner, now=now, clock=ports.clock())
    hosted = tools.hosted_tool_types(settings, runs.hosted_tools, ports.tool_servers())
    return Services(
        admission=admit,
        create=create,
        create_once=CreateOnce(create, keys),
        count=CountTokens(runs.expand_prompt, enter_session, runs.prepare_turn, bounds.limits),
        compact=CompactConversation(create, new_id=new_id),
        decide=Decide(
            ports.models(),
            runs.prepare_turn,
            bounds.limits,
            admit,
            runs.active,
            new_id=new_id,
            guards=ports.guards(),
        ),
        embed=MakeEmbeddings(
            ports.embeddings(),
            bounds.limits,
            ports.bytes_in_work(),
            model=settings.embeddings.model,
            new_id=new_id,
        ),
        moderate=Moderate(
            ports.guards().moderator,
            bounds.limits,
            timeout_s=settings.guards.timeout_s,
            new_id=new_id,
        ),
        describe_models=DescribeModels(ports.models(), hosted_tools=hosted),
        get=get,
        explain=ExplainResponse(get, follow, store, keep_traces),
        list=listed,
        activity=ReportActivity(store, now=now),
        thread=ReadThread(get, listed),
        follow=follow,
        delete=DeleteResponse(store, log, runs.stop, bounds.check_quota),
        cancel=CancelResponse(store, runs.stop),
        input_items=ListInputItems(store),
        keepalive=KeepAlive(settings.keepalive_s, settings.keepalive),
        stopping=asyncio.Event(),
        drained=ShutdownSignal(),
        seal=ports.sealer().seal,
        options=options,
        websockets=OpenWebSockets(settings.websockets_per_tenant),
        relay=relay,
    )
