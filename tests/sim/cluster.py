"""All processes of one world, how they find each other, and who starts the dead ones again.

Knows nothing about which faults come. Invariant: after `heal`, nothing fails any more; then every
request ends within `PATIENCE_MS`, and every peer follows one leader (I12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler_svc.core.events import GenerationEnded, PauseChanged, PauseState
from tests.sim.checkers import Checkers
from tests.sim.gateway import Client, GatewayProcess, unserved
from tests.sim.scheduler import Leader, SchedulerProcess
from tests.sim.settings import Draw, Settings, draw_settings
from tests.sim.simulated_redis import SimulatedRedis
from tests.sim.token_kv_executor import ExecutorProcess, extend_chain
from tests.sim.workloads import Workload
from tests.sim.world import World

PATIENCE_MS = 12_000


class Cluster:
    def __init__(self, seed: int, draw: Draw = draw_settings, *, is_verbose: bool = False) -> None:
        self.world = World(seed, is_verbose=is_verbose)
        self.settings: Settings = draw(self.world.rng)
        settings = self.settings
        self.most_seats = settings.engine.scheduler.max_num_seqs  # likewise
        self.model_lens = settings.model_lens()  # of every configuration that there was
        self.redis = SimulatedRedis(self.world)
        self.schedulers = [SchedulerProcess(self, f"s{i}") for i in range(settings.num_schedulers)]
        self.executors = [
            ExecutorProcess(self, f"e{i}", settings.num_blocks[i])
            for i in range(settings.num_executors)
        ]
        self.retired: list[ExecutorProcess] = []
        self.gateways = [GatewayProcess(self, f"g{i}") for i in range(settings.num_gateways)]
        self.checkers = Checkers(self)
        self.redis.on_commit = self.checkers.on_commit
        self.redis.on_acquired = self.checkers.on_acquired
        self.workload = Workload(self)
        self.is_healed = False
        self.poison = ""  # the request that kills every process that computes it

    def start(self) -> None:
        for process in (*self.schedulers, *self.executors, *self.gateways):
            process.start()

    def change_settings(self, settings: Settings) -> None:
        """What is started from now on is started with these."""
        self.settings = settings
        self.model_lens += settings.model_lens()
        self.most_seats = max(self.most_seats, settings.engine.scheduler.max_num_seqs)

    # Who is where

    def executor_at(self, address: str) -> ExecutorProcess | None:
        everyone = (*self.executors, *self.retired)
        return next((e for e in everyone if e.address == address), None)

    def gateway_called(self, gateway_id: str) -> GatewayProcess:
        return next(g for g in self.gateways if g.gateway_id == gateway_id)

    def client_of(self, request_id: str) -> Client:
        return next(c for c in self.workload.clients if c.request_id == request_id)

    def leaders(self) -> list[Leader]:
        return [s.leader for s in self.schedulers if s.leader is not None]

    def leader_called(self, leader_id: str) -> Leader | None:
        return next((le for le in self.leaders() if le.core.leader[1] == leader_id), None)

    def chain(self, tokens: Sequence[int]) -> list[int]:
        chain: list[int] = []
        extend_chain(chain, list(tokens), len(tokens))
        return chain

    def replace_executor(self, old: ExecutorProcess) -> None:
        """A rolling restart: the new process is there before the old one is gone (H31)."""
        number = int(old.address.rpartition(":")[2]) + 1
        new = ExecutorProcess(self, old.executor_id, old.num_blocks, number)
        old.is_retired = True
        self.executors[self.executors.index(old)] = new
        self.retired.append(old)
        self.checkers.note_replacement(old.executor_id)
        new.start()

    # Supervision

    def restart_later(self, start: Callable[[], None], delay: int) -> None:
        self.world.after(delay, None, start)

    def client_returns(self, client: Client) -> None:
        """Its gateway died; it comes back through another one, or the same when it is up again."""
        client.gateway = None

        def come_back() -> None:
            alive = [g for g in self.gateways if g.life.is_alive and not g.life.is_stopped]
            if alive:
                self.world.rng.choice(alive).attach(client)
            else:
                self.world.after(50, None, come_back)

        self.world.after(self.world.rng.choice((5, 50, 200)), None, come_back)

    def heal(self) -> None:
        """The faults stop: what is stopped goes on, what was switched off is switched on again."""
        self.world.note("faults stop")
        self.is_healed = True
        self.redis.is_down = False
        self.poison = ""
        self.redis.num_unknown = self.redis.num_torn = 0
        for process in (*self.schedulers, *self.executors, *self.gateways):
            self.world.resume(process.life)
        for scheduler in self.schedulers:
            scheduler.effects_left = None
        for executor in self.executors:
            executor.fails_next_step = executor.row_error_next_step = False
            if executor.life.is_alive and executor.stream is not None:
                executor.stream.extra_delay = 0
        for gateway in self.gateways:
            if gateway.session is not None and gateway.session.stream is not None:
                gateway.session.stream.extra_delay = 0
        self._heal_lanes()

    def _heal_lanes(self) -> None:
        """What an operator does in the end, until it is done: unpause, and end what drains."""
        is_done = True
        for leader in self.leaders():
            if leader.core.state.pause_state is not PauseState.UNPAUSED:
                leader.post_event(PauseChanged(PauseState.UNPAUSED))
                is_done = False
            for lane in leader.core.state.lanes.values():
                if lane.status.value == "draining" and lane.generation is not None:
                    self.checkers.note_lane_condemned(lane)
                    now = self.world.now
                    leader.post_event(
                        GenerationEnded(lane.executor_id, lane.generation, "drained", now)
                    )
                    leader.links.end(lane.executor_id)
                    is_done = False
        self.world.after(50 if is_done else 300, None, self._heal_lanes)

    # The end

    def is_quiet(self) -> bool:
        """Every request has ended, at its client and in the leader, whom every peer follows."""
        if not self.is_healed or self.workload.num_calls_left:
            return False
        if unserved(self.workload.clients):
            return False
        leaders = self.leaders()
        if len(leaders) != 1:
            return False
        requests = leaders[0].core.state.requests.values()
        return all(r.is_finished for r in requests) and not self._astray(leaders[0])

    def _astray(self, leader: Leader) -> list[str]:
        """Who does not follow this leader."""
        epoch, leader_id = leader.core.leader
        executors = [
            e.executor_id
            for e in self.executors
            if not e.life.is_alive
            or (e.ledger.epoch_seen, e.ledger.leader_id_seen) != (epoch, leader_id)
            or e.stream is None
        ]
        gateways = [
            g.gateway_id
            for g in self.gateways
            if g.session is None or not g.session.is_ready or g.leader_seen != (epoch, leader_id)
        ]
        return executors + gateways

    def describe_stuck(self) -> str:
        waiting = [client.request_id for client in unserved(self.workload.clients)]
        inside = [
            f"{r.request_id}@{r.lane_id} {r.status.name} owner {r.owner}"
            for leader in self.leaders()
            for r in leader.core.state.requests.values()
            if not r.is_finished
        ]
        astray = [name for leader in self.leaders() for name in self._astray(leader)]
        return f"clients wait for {waiting}; in the core {inside}; astray {astray}"
