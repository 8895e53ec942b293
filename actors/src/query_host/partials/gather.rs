//! Which shards have answered the layer step under way, and whom to ask for the others. No I/O, no clock, no tensor.
//!
//! A step ends when every shard has answered it once. Answers stay when their host is lost: only what is missing is asked for
//! again, of whoever holds it by then. Nobody's silence ends a generation, nor does a wrong answer: the supervisor, who is told
//! of both, decides what to do about them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use asterism_plan::MergeTree;

use crate::{
    messages::{ShardHolder, ShardKeys},
    query_host::partials::route::{Route, routes},
};

/// After how long a loss that nothing was done about is told again.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// An answer is late after this long and so many times what the slowest has taken.
const PATIENCE: Duration = Duration::from_secs(30);
const SLOWER: u32 = 20;
/// Where nothing has answered yet, which tells how much work it is.
const FIRST_PATIENCE: Duration = Duration::from_secs(300);

/// What happens to a generation's view of its context.
#[derive(Clone, Debug, PartialEq)]
pub enum GatherEvent {
    /// A layer of a step asks every shard.
    Ask {
        /// Step.
        step: u32,
        /// Layer.
        layer: u32,
    },
    /// A channel brought answers.
    Answer {
        /// Channel.
        channel: u64,
        /// Step they answer.
        step: u32,
        /// Layer they answer.
        layer: u32,
        /// Shards and their key counts.
        shards: Vec<ShardKeys>,
    },
    /// A channel could not be opened, ended, or brought a refusal or nonsense.
    Broke {
        /// Channel.
        channel: u64,
        /// The host at fault, where it is one that the channel's host asks in its turn.
        host: Option<String>,
        /// Whether it brought what no host that does its work sends.
        wrong: bool,
        /// What was observed.
        cause: String,
    },
    /// Where shards are from now on. The same again means: try again. Shards that are not named have no holder.
    Holders(Vec<ShardHolder>),
    /// Time passed.
    Tick,
}

/// What a generation wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum GatherCommand {
    /// Open a channel to a holder, for what the route says. What is sent on it waits until it is open.
    Open {
        /// Channel; never used again.
        channel: u64,
        /// Whom to open it to, and what to ask of it.
        route: Route,
    },
    /// Close a channel; the next one to its host goes over a new link.
    Drop {
        /// Channel.
        channel: u64,
    },
    /// Send the query of the layer step under way.
    Send {
        /// Channel.
        channel: u64,
    },
    /// Of the answers just handed in, use those of these blocks.
    Take {
        /// Blocks.
        blocks: Vec<u32>,
    },
    /// Every shard has answered.
    Done {
        /// Keys they attended to.
        keys: u64,
    },
    /// Tell the supervisor that a host's shards do not answer.
    Stalled {
        /// Host.
        host: String,
        /// Whether they answered what cannot be right.
        wrong: bool,
        /// What was observed.
        cause: String,
    },
}

/// The state.
pub struct Gather {
    channels: BTreeMap<u64, Channel>,
    opened: u64,
    /// In which order what every block answers is merged, whether anybody holds it or not.
    tree: Arc<MergeTree>,
    fan_in: u32,
    /// Blocks of one host, at most.
    most: usize,
    asked: Option<PendingQuery>,
    /// The longest that an answer took so far.
    slowest: Option<Duration>,
    /// Some shard has nobody to ask for it.
    stuck: bool,
}

struct Channel {
    route: Route,
    /// When it was asked last.
    asked: Duration,
    broken: Option<Broken>,
}

struct Broken {
    reported: Duration,
    host: String,
    wrong: bool,
    cause: String,
}

struct PendingQuery {
    step: u32,
    layer: u32,
    /// Blocks that have answered, with their keys.
    answered: BTreeMap<u32, u64>,
}

impl PendingQuery {
    fn lacks(&self, holder: &ShardHolder) -> bool {
        holder.blocks.iter().any(|block| !self.answered.contains_key(block))
    }
}

impl Gather {
    /// Of a context whose shards are merged so, of which nobody is known to hold one.
    pub fn new(tree: Arc<MergeTree>, fan_in: u32) -> Self {
        let stuck = tree.shards() > 0;
        Self { channels: BTreeMap::new(), opened: 0, stuck, tree, fan_in, most: 0, asked: None, slowest: None }
    }

    /// Applies one event.
    pub fn handle(&mut self, now: Duration, event: GatherEvent) -> Vec<GatherCommand> {
        let mut commands = Vec::new();
        match event {
            GatherEvent::Ask { step, layer } => {
                self.asked = Some(PendingQuery { step, layer, answered: BTreeMap::new() });
                let live = self.channels.iter_mut().filter(|(_, channel)| channel.broken.is_none());
                commands.extend(live.map(|(&channel, live)| {
                    live.asked = now;
                    GatherCommand::Send { channel }
                }));
                self.finish(&mut commands);
            }
            GatherEvent::Answer { channel, step, layer, shards } => {
                return self.answered(now, channel, (step, layer), &shards);
            }
            GatherEvent::Broke { channel, host, wrong, cause } => {
                return self.broke(now, channel, (host, wrong, cause));
            }
            GatherEvent::Holders(holders) => self.moved(now, &holders, &mut commands),
            GatherEvent::Tick => {
                for Channel { broken, .. } in self.channels.values_mut() {
                    if let Some(broken) = broken.as_mut().filter(|broken| now >= broken.reported + TELL_AGAIN) {
                        broken.reported = now;
                        let Broken { host, wrong, cause, .. } = broken;
                        commands.push(GatherCommand::Stalled {
                            host: host.clone(),
                            wrong: *wrong,
                            cause: cause.clone(),
                        });
                    }
                }
                for (channel, since) in
                    self.owing().filter(|(_, since)| now >= *since + self.patience()).collect::<Vec<_>>()
                {
                    let cause = format!("it has not answered for {:?}", now.saturating_sub(since));
                    commands.extend(self.broke(now, channel, (None, false, cause)));
                }
            }
        }
        commands
    }

    /// When it wants the next [`GatherEvent::Tick`].
    pub fn deadline(&self) -> Option<Duration> {
        let reported = self.channels.values().filter_map(|channel| channel.broken.as_ref());
        let late = self.owing().map(|(_, since)| since + self.patience());
        reported.map(|broken| broken.reported + TELL_AGAIN).chain(late).min()
    }

    /// Channels that owe an answer, and since when.
    fn owing(&self) -> impl Iterator<Item = (u64, Duration)> {
        let live = self.channels.iter().filter(|(_, channel)| channel.broken.is_none());
        let owes = |channel: &Channel| self.asked.as_ref().is_some_and(|asked| asked.lacks(&channel.route.holder));
        live.filter(move |(_, channel)| owes(channel)).map(|(number, channel)| (*number, channel.asked))
    }

    /// How long an answer may take.
    fn patience(&self) -> Duration {
        self.slowest.map_or(FIRST_PATIENCE, |slowest| PATIENCE + SLOWER * slowest)
    }

    /// Whether some shard has nobody to ask for it: its holder was lost, or there is none.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Shards of the context.
    pub fn shards(&self) -> usize {
        self.tree.shards()
    }

    /// Shards that one host holds, at most.
    pub fn most_shards(&self) -> usize {
        self.most
    }

    /// The layer step under way is given up; it will be asked for anew.
    pub fn give_up(&mut self) {
        self.asked = None;
    }

    /// Blocks that have not answered the layer step under way.
    pub fn missing(&self) -> Vec<u32> {
        let Some(asked) = &self.asked else { return Vec::new() };
        (0..self.tree.shards() as u32).filter(|block| !asked.answered.contains_key(block)).collect()
    }

    fn answered(&mut self, now: Duration, channel: u64, of: (u32, u32), shards: &[ShardKeys]) -> Vec<GatherCommand> {
        let Some(Channel { route: Route { holder, .. }, asked: since, broken: None }) = self.channels.get(&channel)
        else {
            return Vec::new();
        };
        if shards.iter().map(|shard| shard.block).ne(holder.blocks.iter().copied()) {
            let cause = format!("it holds shards {:?} and answered for {shards:?}", holder.blocks);
            return self.broke(now, channel, (None, true, cause));
        }
        // What answers an earlier ask was not waited for.
        let Some(asked) = self.asked.as_mut().filter(|asked| (asked.step, asked.layer) == of) else {
            return Vec::new();
        };
        self.slowest = self.slowest.max(Some(now.saturating_sub(*since)));
        let mut blocks = Vec::new();
        for ShardKeys { block, keys } in shards {
            asked.answered.entry(*block).or_insert_with(|| {
                blocks.push(*block);
                *keys
            });
        }
        let mut commands = vec![GatherCommand::Take { blocks }];
        self.finish(&mut commands);
        commands
    }

    fn finish(&mut self, commands: &mut Vec<GatherCommand>) {
        if let Some(asked) = self.asked.take_if(|asked| asked.answered.len() == self.tree.shards()) {
            let keys = asked.answered.values().fold(0, |all: u64, keys| all.saturating_add(*keys));
            commands.push(GatherCommand::Done { keys });
        }
    }

    fn broke(
        &mut self,
        now: Duration,
        channel: u64,
        (host, wrong, cause): (Option<String>, bool, String),
    ) -> Vec<GatherCommand> {
        let Some(Channel { route, broken: broken @ None, .. }) = self.channels.get_mut(&channel) else {
            return Vec::new();
        };
        let host = host.filter(|host| route.leads_to(host)).unwrap_or_else(|| route.holder.host.clone());
        *broken = Some(Broken { reported: now, host: host.clone(), wrong, cause: cause.clone() });
        let commands = vec![GatherCommand::Drop { channel }, GatherCommand::Stalled { host, wrong, cause }];
        self.stuck = self.lacks_a_holder();
        commands
    }

    fn lacks_a_holder(&self) -> bool {
        let live = self.channels.values().filter(|channel| channel.broken.is_none());
        let held: BTreeSet<u32> = live.flat_map(|channel| channel.route.holder.blocks.iter().copied()).collect();
        (0..self.tree.shards() as u32).any(|block| !held.contains(&block))
    }

    fn moved(&mut self, now: Duration, holders: &[ShardHolder], commands: &mut Vec<GatherCommand>) {
        let asked = self.asked.as_ref();
        let mut wanted = routes(&self.tree, self.fan_in, holders);
        self.most = holders.iter().map(|holder| holder.blocks.len()).max().unwrap_or(0);
        self.channels.retain(|id, Channel { route, broken, .. }| {
            // Who owes an answer is asked anew: its channel may lead to a process that is no more.
            let owes = asked.is_some_and(|asked| asked.lacks(&route.holder));
            match wanted.iter_mut().find(|wanted| !owes && wanted.covers(route)) {
                Some(wanted) if broken.is_none() => {
                    wanted.leave_to(route);
                    true
                }
                _ => {
                    commands.extend(broken.is_none().then_some(GatherCommand::Drop { channel: *id }));
                    false
                }
            }
        });
        for route in wanted.into_iter().filter(|route| !route.holder.blocks.is_empty()) {
            let channel = self.opened;
            self.opened += 1;
            commands.push(GatherCommand::Open { channel, route: route.clone() });
            if self.asked.as_ref().is_some_and(|asked| asked.lacks(&route.holder)) {
                commands.push(GatherCommand::Send { channel });
            }
            self.channels.insert(channel, Channel { route, asked: now, broken: None });
        }
        self.stuck = self.lacks_a_holder();
    }
}

#[cfg(test)]
mod tests {
    use asterism_plan::KeptShard;

    use super::*;

    fn holder(host: &str, blocks: &[u32]) -> ShardHolder {
        ShardHolder { host: host.into(), endpoints: Vec::new(), blocks: blocks.to_vec() }
    }

    /// Each shard is a group of its own.
    fn open(channel: u64, host: &str, blocks: &[u32]) -> GatherCommand {
        let groups = blocks.iter().map(|block| vec![*block]).collect();
        let route = Route { holder: holder(host, blocks), groups, below: Vec::new(), merges: Vec::new() };
        GatherCommand::Open { channel, route }
    }

    fn gather(shards: u32, fan_in: u32) -> Gather {
        let shards: Vec<KeptShard> = (0..shards).map(|group| KeptShard { keys: 10, group }).collect();
        Gather::new(Arc::new(MergeTree::new(&shards, fan_in)), fan_in)
    }

    fn send(channel: u64) -> GatherCommand {
        GatherCommand::Send { channel }
    }

    fn take(blocks: &[u32]) -> GatherCommand {
        GatherCommand::Take { blocks: blocks.to_vec() }
    }

    fn stalled(host: &str) -> GatherCommand {
        GatherCommand::Stalled { host: host.into(), wrong: false, cause: "it is gone".into() }
    }

    struct Driver(Gather, Duration);

    impl Driver {
        /// Shards 0 and 1 on a, 2 on b; asked for the first layer.
        fn asked() -> Self {
            let mut driver = Self(gather(3, 32), Duration::ZERO);
            assert_eq!(
                driver.holders(&[holder("a", &[0, 1]), holder("b", &[2])]),
                [open(0, "a", &[0, 1]), open(1, "b", &[2])]
            );
            assert_eq!(driver.ask(0), [send(0), send(1)]);
            driver
        }

        fn on(&mut self, event: GatherEvent) -> Vec<GatherCommand> {
            self.0.handle(self.1, event)
        }

        fn holders(&mut self, holders: &[ShardHolder]) -> Vec<GatherCommand> {
            self.on(GatherEvent::Holders(holders.to_vec()))
        }

        fn ask(&mut self, layer: u32) -> Vec<GatherCommand> {
            self.on(GatherEvent::Ask { step: 0, layer })
        }

        fn answer(&mut self, channel: u64, layer: u32, blocks: &[u32]) -> Vec<GatherCommand> {
            let shards = blocks.iter().map(|&block| ShardKeys { block, keys: 10 }).collect();
            self.on(GatherEvent::Answer { channel, step: 0, layer, shards })
        }

        fn broke(&mut self, channel: u64) -> Vec<GatherCommand> {
            self.on(GatherEvent::Broke { channel, host: None, wrong: false, cause: "it is gone".into() })
        }
    }

    #[test]
    fn a_layer_is_done_when_every_shard_has_answered() {
        let mut driver = Driver::asked();
        assert_eq!(driver.answer(1, 0, &[2]), [take(&[2])]);
        assert_eq!(driver.0.missing(), [0, 1]);
        assert_eq!(driver.answer(0, 0, &[0, 1]), [take(&[0, 1]), GatherCommand::Done { keys: 30 }]);
        assert_eq!(driver.ask(1), [send(0), send(1)]);
        assert_eq!(driver.answer(1, 0, &[2]), [], "an answer to an earlier ask");
    }

    #[test]
    fn a_lost_host_costs_its_missing_answers_only() {
        let mut driver = Driver::asked();
        driver.answer(1, 0, &[2]);
        assert_eq!(driver.broke(0), [GatherCommand::Drop { channel: 0 }, stalled("a")]);
        assert_eq!(driver.broke(0), [], "one loss is one observation");
        // One of its shards goes to b, which has answered already, the other to c.
        let moved = driver.holders(&[holder("b", &[1, 2]), holder("c", &[0])]);
        assert_eq!(moved, [open(2, "b", &[1]), send(2), open(3, "c", &[0]), send(3)]);
        assert_eq!(driver.answer(2, 0, &[1]), [take(&[1])]);
        assert_eq!(driver.answer(3, 0, &[0]), [take(&[0]), GatherCommand::Done { keys: 30 }]);
        assert_eq!(driver.ask(1), [send(1), send(2), send(3)]);
    }

    #[test]
    fn answers_stay_when_their_host_is_lost_before_the_layer_is_done() {
        let mut driver = Driver::asked();
        driver.answer(0, 0, &[0, 1]);
        driver.broke(0);
        assert_eq!(driver.holders(&[holder("b", &[0, 1, 2])])[1..], [open(2, "b", &[0, 1, 2]), send(2)]);
        assert_eq!(driver.answer(2, 0, &[0, 1, 2]), [take(&[2]), GatherCommand::Done { keys: 30 }]);
    }

    #[test]
    fn the_same_holders_again_mean_try_again() {
        let mut driver = Driver::asked();
        driver.answer(1, 0, &[2]);
        driver.broke(0);
        let same = [holder("a", &[0, 1]), holder("b", &[2])];
        assert_eq!(driver.holders(&same), [open(2, "a", &[0, 1]), send(2)]);
        // A host that owes an answer is asked anew, as its channel may lead nowhere.
        assert_eq!(driver.holders(&same), [GatherCommand::Drop { channel: 2 }, open(3, "a", &[0, 1]), send(3)]);
        assert_eq!(driver.answer(2, 0, &[0, 1]), []);
        assert_eq!(driver.answer(3, 0, &[0, 1]), [take(&[0, 1]), GatherCommand::Done { keys: 30 }]);
        assert_eq!(driver.holders(&same), [], "nobody owes anything");
    }

    #[test]
    fn a_loss_is_told_again_every_second_until_something_is_done() {
        let mut driver = Driver::asked();
        assert_eq!(driver.0.deadline(), Some(FIRST_PATIENCE));
        driver.broke(0);
        assert_eq!(driver.0.deadline(), Some(TELL_AGAIN));
        driver.1 = TELL_AGAIN - Duration::from_millis(1);
        assert_eq!(driver.on(GatherEvent::Tick), []);
        driver.1 = TELL_AGAIN;
        assert_eq!(driver.on(GatherEvent::Tick), [stalled("a")]);
        assert_eq!(driver.0.deadline(), Some(2 * TELL_AGAIN));
        // Its shards have no holder for now: they are waited for, quietly.
        assert_eq!(
            driver.holders(&[holder("b", &[2])]),
            [GatherCommand::Drop { channel: 1 }, open(2, "b", &[2]), send(2)]
        );
        assert_eq!(driver.0.deadline(), Some(driver.1 + FIRST_PATIENCE), "who has them now is waited for");
        assert_eq!(driver.answer(2, 0, &[2]), [take(&[2])]);
        assert_eq!(driver.0.missing(), [0, 1]);
        assert_eq!(driver.0.deadline(), None);
    }

    #[test]
    fn an_answer_is_late_after_many_times_what_the_slowest_took() {
        let mut driver = Driver::asked();
        driver.1 = Duration::from_secs(2);
        driver.answer(1, 0, &[2]);
        let late = PATIENCE + SLOWER * Duration::from_secs(2);
        assert_eq!(driver.0.deadline(), Some(late), "b took two seconds, a owes its answer since the beginning");
        driver.1 = late - Duration::from_millis(1);
        assert_eq!(driver.on(GatherEvent::Tick), []);
        driver.1 = late;
        let commands = driver.on(GatherEvent::Tick);
        let [GatherCommand::Drop { channel: 0 }, GatherCommand::Stalled { host, wrong: false, cause }] = &commands[..]
        else {
            panic!("{commands:?}")
        };
        assert!(host == "a" && cause.contains("70s"), "{cause}");
        assert_eq!(driver.0.deadline(), Some(late + TELL_AGAIN));
        let moved = driver.holders(&[holder("b", &[0, 1, 2])]);
        assert_eq!(moved, [open(2, "b", &[0, 1]), send(2)], "what b has answered stays");
        assert_eq!(driver.answer(2, 0, &[0, 1]), [take(&[0, 1]), GatherCommand::Done { keys: 30 }]);
    }

    #[test]
    fn an_answer_for_other_shards_is_a_fault_of_its_host() {
        let mut driver = Driver::asked();
        let commands = driver.answer(0, 0, &[0]);
        let [GatherCommand::Drop { channel: 0 }, GatherCommand::Stalled { wrong: true, cause, .. }] = &commands[..]
        else {
            panic!("{commands:?}")
        };
        assert!(cause.contains("[0, 1]"), "{cause}");
    }

    /// The channels that a shell would have, and what came of the layer.
    #[derive(Default)]
    struct TestShell {
        open: BTreeMap<u64, Vec<u32>>,
        owed: BTreeSet<u64>,
        taken: Vec<u32>,
        done: Vec<u64>,
    }

    impl TestShell {
        fn carry_out(&mut self, commands: Vec<GatherCommand>) {
            for command in commands {
                match command {
                    GatherCommand::Open { channel, route } => drop(self.open.insert(channel, route.holder.blocks)),
                    GatherCommand::Drop { channel } => {
                        assert!(self.open.remove(&channel).is_some(), "channel {channel} is not open");
                        self.owed.remove(&channel);
                    }
                    GatherCommand::Send { channel } => {
                        assert!(self.open.contains_key(&channel) && self.owed.insert(channel), "channel {channel}");
                    }
                    GatherCommand::Take { blocks } => self.taken.extend(blocks),
                    GatherCommand::Done { keys } => self.done.push(keys),
                    GatherCommand::Stalled { .. } => {}
                }
            }
        }

        fn answer(&mut self, driver: &mut Driver, channel: u64) {
            self.owed.remove(&channel);
            let blocks = self.open[&channel].clone();
            self.carry_out(driver.answer(channel, 0, &blocks));
        }
    }

    #[test]
    fn a_shard_that_nobody_has_held_yet_is_waited_for() {
        let mut driver = Driver(gather(2, 32), Duration::ZERO);
        assert_eq!(driver.holders(&[]), []);
        assert!(driver.0.is_stuck());
        assert_eq!(driver.holders(&[holder("a", &[1])]), [open(0, "a", &[1])]);
        assert!(driver.0.is_stuck(), "nobody holds shard 0");
        assert_eq!(driver.ask(0), [send(0)]);
        assert_eq!(driver.answer(0, 0, &[1]), [take(&[1])]);
        assert_eq!(driver.holders(&[holder("a", &[1]), holder("b", &[0])])[..], [open(1, "b", &[0]), send(1)]);
        assert!(!driver.0.is_stuck());
        assert_eq!(driver.answer(1, 0, &[0]), [take(&[0]), GatherCommand::Done { keys: 20 }]);
    }

    #[test]
    fn a_layer_ends_once_with_every_shard_whatever_was_lost_and_moved_before() {
        for seed in 0..500_u64 {
            let mut state = seed;
            let mut draw = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let (mut driver, mut shell) = (Driver(gather(3, 32), Duration::ZERO), TestShell::default());
            shell.carry_out(driver.holders(&[holder("a", &[0, 1]), holder("b", &[2])]));
            shell.carry_out(driver.ask(0));
            for _ in 0..20 {
                let at = |all: Vec<u64>, draw: &mut dyn FnMut(usize) -> usize| {
                    (!all.is_empty()).then(|| all[draw(all.len())])
                };
                match draw(4) {
                    0 => {
                        let lost = at(shell.open.keys().copied().collect(), &mut draw);
                        lost.into_iter().for_each(|channel| shell.carry_out(driver.broke(channel)));
                    }
                    1 => {
                        let answers = at(shell.owed.iter().copied().collect(), &mut draw);
                        answers.into_iter().for_each(|channel| shell.answer(&mut driver, channel));
                    }
                    2 => shell.carry_out(driver.on(GatherEvent::Tick)),
                    _ => {
                        let mut dealt = ["a", "b", "c"].map(|host| holder(host, &[]));
                        // The fourth is nobody.
                        for block in 0..3 {
                            dealt.get_mut(draw(4)).into_iter().for_each(|holder| holder.blocks.push(block));
                        }
                        shell.carry_out(driver.holders(&dealt));
                    }
                }
            }
            shell.carry_out(driver.holders(&[holder("a", &[1]), holder("c", &[0, 2])]));
            while let Some(channel) = shell.owed.first().copied() {
                shell.answer(&mut driver, channel);
            }
            shell.taken.sort_unstable();
            assert_eq!((shell.taken, shell.done), (vec![0, 1, 2], vec![30]), "seed {seed}");
        }
    }
}
