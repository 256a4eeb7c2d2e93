"""What goes wrong, and when: every fault is one event, drawn when the world begins.

Knows nothing about what must hold then (checkers). Invariant: after `FAULTS_END_MS` none comes, and
each one's lasting effect is undone by `Cluster.heal`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler_svc.core.events import LaneDrained, PauseChanged, PauseState, PrefixCacheReset
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.three_queue.scheduler import ThreeQueueScheduler
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from tests.sim.gateway import GatewayProcess
from tests.sim.live_settings import change_settings
from tests.sim.settings import Settings
from tests.sim.token_kv_executor import ExecutorProcess
from tests.sim.world import Life

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

FAULTS_END_MS = 1800


class Faults:
    def __init__(
        self, cluster: Cluster, certain: Collection[str] = (), *, is_calm: bool = False
    ) -> None:
        self.cluster = cluster
        self.certain = certain  # names of kinds that come in every world
        self.is_calm = is_calm
        self.world = cluster.world
        self.rng = cluster.world.rng

    def plan(self) -> None:
        """Some kinds in each world, few or many, some of them several times."""
        share = 0.0 if self.is_calm else self.rng.choice((0.1, 0.2, 0.4))
        kinds = [
            kind
            for kind in self._kinds()
            if self.rng.random() < share or kind.__name__ in self.certain
        ]
        for kind in kinds:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                when = self.rng.randrange(300, FAULTS_END_MS)
                self.world.after(when, None, kind)
        self.world.after(FAULTS_END_MS + 500, None, self.cluster.heal)

    def _kinds(self) -> list[Callable[[], None]]:
        kinds = [
            self.kill_scheduler,
            self.kill_leader_between_effects,
            self.stop_scheduler,
            self.end_scheduler,
            self.kill_executor,
            self.stop_executor,
            self.replace_executor,
            self.poison,
            self.fail_step,
            self.fail_row,
            self.kill_gateway,
            self.stop_gateway,
            self.stop_gateway_during_takeover,
            self.cut_executor_stream,
            self.cut_session,
            self.gateway_looks_again,
            self.cut_while_redis_is_away,
            self.slow_streams,
            self.unknown_outcomes,
            self.redis_down,
            self.client_leaves,
            self.client_moves,
            self.submit_again,
            self.pause,
            self.reset_prefix_cache,
            self.give_up_lane,
            self.drain,
            self.change_configuration,
            self.change_policy,
            self.change_settings,
        ]
        losses = [
            self.lose_tail,
            self.lose_tail_and_leader,
            self.lose_tail_while_gateways_sleep,
            self.lose_all,
            self.lose_behind_stopped_leader,
            self.tear,
        ]
        if self.cluster.settings.may_lose_redis:
            return kinds + losses
        return kinds + [kind for kind in losses if kind.__name__ in self.certain]

    # Schedulers

    def kill_scheduler(self) -> None:
        self.world.kill(self.rng.choice(self.cluster.schedulers).life)

    def kill_leader_between_effects(self) -> None:
        for scheduler in self.cluster.schedulers:
            if scheduler.leader is not None:
                scheduler.effects_left = self.rng.randrange(12)

    def stop_scheduler(self) -> None:
        self._stop(self.rng.choice(self.cluster.schedulers).life, 900)

    def end_scheduler(self) -> None:
        """SIGTERM: it hands back the lease."""
        for leader in self.cluster.leaders():
            leader.end()

    def _stop(self, life: Life, longest: int) -> None:
        if not life.is_alive:
            return
        self.world.stop(life)
        duration = self.rng.randrange(20, longest)
        self.world.after(duration, None, lambda: self.world.resume(life))

    # Executors

    def kill_executor(self) -> None:
        self.world.kill(self._executor().life)

    def stop_executor(self) -> None:
        executor = self._executor()
        checkers, executor_id = self.cluster.checkers, executor.executor_id
        duration = self.rng.randrange(20, 1400)
        self.world.stop(executor.life)
        life = executor.life

        def resume() -> None:
            checkers.note_trouble(executor_id)
            self.world.resume(life)

        checkers.note_trouble(executor_id)
        self.world.after(duration, None, resume)

    def replace_executor(self) -> None:
        old = self._executor()
        if not old.life.is_alive:
            return
        self.cluster.replace_executor(old)
        self.world.after(self.rng.randrange(30, 500), old.life, lambda: self.world.kill(old.life))

    def poison(self) -> None:
        """One request kills every process that computes it (H30)."""
        clients = [c for c in self.cluster.workload.clients if not c.is_served]
        if clients:
            self.cluster.poison = self.rng.choice(clients).request_id

    def fail_step(self) -> None:
        self._executor().fails_next_step = True

    def fail_row(self) -> None:
        self._executor().row_error_next_step = True

    def _executor(self) -> ExecutorProcess:
        return self.rng.choice(self.cluster.executors)

    # Gateways and clients

    def kill_gateway(self) -> None:
        self.world.kill(self._gateway().life)

    def stop_gateway(self) -> None:
        self._stop(self._gateway().life, 500)

    def stop_gateway_during_takeover(self) -> None:
        self._stop(self._gateway().life, 600)
        self.world.after(self.rng.randrange(100), None, self.kill_scheduler)

    def client_leaves(self) -> None:
        clients = [c for c in self.cluster.workload.clients if not c.is_served and c.gateway]
        if not clients:
            return
        client = self.rng.choice(clients)
        client.is_gone = client.may_be_aborted = True
        if client.gateway is not None and client.gateway.life.is_alive:
            client.gateway.leave(client)

    def client_moves(self) -> None:
        """It comes back through another gateway; the old one notices later (H24)."""
        movable = [
            c
            for c in self.cluster.workload.clients
            if not c.is_served
            and c.gateway
            and c.submission.is_resumable
            and c.request_id in c.gateway.entries
            and c.gateway.entries[c.request_id].was_accepted
        ]
        others = [g for g in self.cluster.gateways if g.life.is_alive]
        if not movable or len(others) < 2:
            return
        client = self.rng.choice(movable)
        old = client.gateway
        assert old is not None
        new = next(g for g in others if g is not old)
        new.attach(client)

        def notice() -> None:
            if client.gateway is not old:
                old.leave(client)

        self.world.after(self.rng.randrange(150), old.life, notice)

    def submit_again(self) -> None:
        gateway = self._gateway()
        if gateway.life.is_alive and gateway.entries:
            gateway.submit_again(self.rng.choice(list(gateway.entries)))

    def _gateway(self) -> GatewayProcess:
        return self.rng.choice(self.cluster.gateways)

    # Streams

    def cut_executor_stream(self) -> None:
        executor = self._executor()
        if executor.life.is_alive and executor.stream is not None:
            self.cluster.checkers.note_trouble(executor.executor_id)
            executor.stream.cut()

    def cut_session(self) -> None:
        session = self._gateway().session
        if session is not None and session.stream is not None:
            session.stream.cut()

    def gateway_looks_again(self) -> None:
        """It has heard of another leader: it ends its session, whose messages are on their way."""
        gateway = self._gateway()
        if gateway.life.is_alive and gateway.session is not None:
            gateway.end_session()

    def cut_while_redis_is_away(self) -> None:
        """A new process says hello more than once while one commit is under way."""
        self.kill_executor()
        self._redis_down(800)
        for when in range(100, 700, 120):
            self.world.after(when + self.rng.randrange(100), None, self.cut_executor_stream)

    def slow_streams(self) -> None:
        for gateway in self.cluster.gateways:
            if gateway.session is not None and gateway.session.stream is not None:
                gateway.session.stream.extra_delay = self.rng.choice((5, 60))
        for executor in self.cluster.executors:
            if executor.life.is_alive and executor.stream is not None:
                executor.stream.extra_delay = self.rng.choice((5, 60))

    # Redis

    def unknown_outcomes(self) -> None:
        self.cluster.redis.num_unknown = self.rng.randrange(1, 6)

    def redis_down(self) -> None:
        self._redis_down(self.rng.randrange(20, 700))

    def _redis_down(self, duration: int) -> None:
        redis = self.cluster.redis
        redis.is_down = True

        def up() -> None:
            redis.is_down = False

        self.world.after(duration, None, up)

    def lose_tail(self, num_tries: int = 60) -> None:
        """While steps are in flight, if it can be: then there is something to lose."""
        lanes = (lane for le in self.cluster.leaders() for lane in le.core.state.lanes.values())
        if any(lane.planned for lane in lanes):
            self._lose_tail()
        elif num_tries:
            self.world.after(10, None, lambda: self.lose_tail(num_tries - 1))

    def _lose_tail(self) -> None:
        redis = self.cluster.redis
        length = len(redis.state.history)
        lost = min(length, self.rng.choice((1, 2, 2, 4, 8, 40)))
        redis.lose(length - lost, with_restart=self.rng.random() < 0.5)

    def lose_tail_and_leader(self, num_tries: int = 60) -> None:
        busy = [
            le
            for le in self.cluster.leaders()
            if any(lane.planned for lane in le.core.state.lanes.values())
        ]
        for leader in busy:
            self.world.kill(leader.life)
        if busy:
            self._lose_tail()
        elif num_tries:
            self.world.after(10, None, lambda: self.lose_tail_and_leader(num_tries - 1))

    def lose_tail_while_gateways_sleep(self) -> None:
        """What was told is computed again, perhaps otherwise, before it is handed over (H9)."""
        for gateway in self.cluster.gateways:
            self._stop(gateway.life, 500)
        self.world.after(self.rng.randrange(40), None, self.lose_tail_and_leader)

    def lose_all(self) -> None:
        self.cluster.redis.lose(0, with_restart=self.rng.random() < 0.5)

    def lose_behind_stopped_leader(self) -> None:
        """A leader wakes after another one has served on what was left (H13)."""
        for scheduler in self.cluster.schedulers:
            if scheduler.leader is not None:
                self._stop(scheduler.life, 900)
        self._lose_tail()

    def tear(self) -> None:
        self.cluster.redis.num_torn = self.rng.choice((1, 2))
        if self.rng.random() < 0.5:
            self.world.after(self.rng.randrange(1, 10), None, self.kill_scheduler)

    # Operations

    def pause(self) -> None:
        state = self.rng.choice((PauseState.PAUSED_NEW, PauseState.PAUSED_ALL))
        for leader in self.cluster.leaders():
            leader.post_event(PauseChanged(state))
        self.world.after(self.rng.randrange(10, 300), None, self._unpause)

    def _unpause(self) -> None:
        for leader in self.cluster.leaders():
            leader.post_event(PauseChanged(PauseState.UNPAUSED))

    def reset_prefix_cache(self) -> None:
        for leader in self.cluster.leaders():
            leader.post_event(PrefixCacheReset(self.rng.random() < 0.6))

    def give_up_lane(self) -> None:
        """A timer's verdict, though the process lives."""
        for leader in self.cluster.leaders():
            for lane in leader.core.state.lanes.values():
                if lane.is_open and self.rng.random() < 0.7:
                    self.cluster.checkers.note_trouble(lane.executor_id)
                    leader.links.give_up(lane, "an operator's mistake")

    def change_configuration(self) -> None:
        """All schedulers are stopped, and started with another value of one field."""
        settings, rng = self.cluster.settings, self.rng
        config = settings.engine.scheduler
        field, value = rng.choice(
            (
                ("max_num_seqs", rng.choice((1, 2, 6))),
                ("max_num_batched_tokens", rng.choice((6, 64))),
                ("max_model_len", rng.choice((16, 64))),
                ("policy", "fcfs" if config.policy == "priority" else "priority"),
                ("enable_prefix_caching", not config.enable_prefix_caching),
                ("async_scheduling", not config.async_scheduling),
                ("long_prefill_token_threshold", rng.choice((0, 2, 7))),
                ("watermark", rng.choice((0.0, 0.2))),
            )
        )
        try:
            config = replace(config, **{field: value})
        except ValueError:  # it does not go with the rest
            return
        self.world.note(f"the configuration gets {field} {value}")
        depth = 1 if settings.make_policy is ThreeQueueScheduler else 1 + config.async_scheduling
        engine = replace(settings.engine, scheduler=config, depth=depth)
        self._restart_with(replace(settings, engine=engine))

    def change_settings(self) -> None:
        change_settings(self.cluster)

    def change_policy(self) -> None:
        """From one of our policies to the other; the requests stay (H32)."""
        settings = self.cluster.settings
        config = settings.engine.scheduler
        common = SchedulerConfig(
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_model_len),
            max_model_len=config.max_model_len,
            policy=config.policy,
        )
        if settings.make_policy is UnifiedScheduler:
            make_policy, depth, config = ThreeQueueScheduler, 1, ThreeQueueConfig.of(common)
        else:
            make_policy, depth, config = UnifiedScheduler, 2, common
        self.world.note(f"the policy is {make_policy.__name__} from now on")
        engine = replace(settings.engine, scheduler=config, depth=depth)
        self._restart_with(replace(settings, engine=engine, make_policy=make_policy))

    def _restart_with(self, settings: Settings) -> None:
        self.cluster.change_settings(settings)
        for scheduler in self.cluster.schedulers:
            self.world.kill(scheduler.life)

    def drain(self) -> None:
        executor_id = self._executor().executor_id
        for leader in self.cluster.leaders():
            leader.post_event(LaneDrained(executor_id, self.world.now))
