//! What each actor may do next.

use ashlar_space::floors::Class;
use ashlar_space::ledger::Claim;
use ashlar_space::topology::Area;
use ashlar_space::work::{HALF, Job, next_job, sparsest_nodes};

use crate::state::{Planted, Seg, Small, State, Use};

/// What a step leads to, or what it violates.
pub type Next = Result<State, &'static str>;

/// Calls `go` with every step from this state.
pub fn steps(array: &Small, state: &State, go: &mut dyn FnMut(&str, Next)) {
    clients(array, state, go);
    if let Some(next) = start_job(array, state) {
        go("a job starts", Ok(next));
    }
    for at in 0..state.segs.len() {
        if at > 0 && state.segs[at] == state.segs[at - 1] {
            continue;
        }
        if let Some(next) = go_on(state, at) {
            go("a job goes on", Ok(next));
        }
    }
    for next in checkpoint_step(array, state) {
        go("a checkpoint makes a step", next);
    }
    if let Some(next) = root(array, state) {
        go("a root is durable", Ok(next));
    }
    for device in 0..array.slots.len() as u16 {
        if state.lost.count_ones() < array.losses && state.lost >> device & 1 == 0 {
            go(
                &format!("device {device} is lost"),
                lose(array, state, device),
            );
        }
    }
    let mut reckoned = state.clone();
    reckoned.reckon(array);
    if reckoned.ledger.floors() != state.ledger.floors() {
        go("floors are reckoned", Ok(reckoned));
    }
}

impl State {
    /// A node goes to the segment that is being filled, or to a new one; whether there was room.
    pub fn place_node(&mut self) -> bool {
        let open = self
            .segs
            .iter()
            .position(|s| s.what == Use::OpenNodes && s.has_room());
        let at = match open {
            Some(at) => at,
            None => {
                let template = self.plan().nodes;
                let claimed = self
                    .moves
                    .iter()
                    .position(|(area, n)| *area == Area::Nodes && self.left(*n) > 0);
                let claimed = claimed.and_then(|at| {
                    let claim = Claim::from_number(self.moves[at].1);
                    self.ledger.acquire(&claim, &[])
                });
                let devices = claimed.or_else(|| {
                    self.ledger
                        .take_segment(Class::Checkpoint, Area::Nodes, &[])
                });
                let Some(devices) = devices else {
                    return false;
                };
                self.add(Area::Nodes, template, &devices, Use::OpenNodes);
                self.segs.len() - 1
            }
        };
        self.fill(at);
        true
    }

    /// A block is written to an open segment.
    fn fill(&mut self, at: usize) {
        let seg = &mut self.segs[at];
        seg.written += 1;
        seg.live += 1;
        if seg.written == u64::from(seg.k) {
            seg.what = Use::Closed;
        }
    }

    /// A block of a segment dies.
    fn kill(&mut self, at: usize) {
        self.segs[at].live -= 1;
        self.bury(at);
    }

    /// A closed segment without live blocks is needed no more, and a job on it has ended.
    fn bury(&mut self, at: usize) {
        let seg = self.segs[at];
        if seg.live > 0 || seg.is_open() {
            return;
        }
        match seg.what {
            Use::Closed => self.ledger.expect(&seg.devices()),
            Use::Victim(_) => (),
            Use::Columns { .. } => return, // until the job ends
            _ => return,
        }
        self.segs[at].what = Use::Dead;
        self.give_surplus_back();
    }

    /// What no move will use is given back.
    fn give_surplus_back(&mut self) {
        let moving: Vec<Area> = self
            .segs
            .iter()
            .filter_map(|s| match s.what {
                Use::Victim(into) => Some(into),
                _ => None,
            })
            .collect();
        let (keep, back): (Vec<_>, Vec<_>) = self
            .moves
            .drain(..)
            .partition(|(area, _)| moving.contains(area));
        self.moves = keep;
        for (_, number) in back {
            self.ledger.give_back(Claim::from_number(number));
        }
    }
}

fn clients(array: &Small, state: &State, go: &mut dyn FnMut(&str, Next)) {
    let open = state
        .segs
        .iter()
        .position(|s| s.what == Use::OpenClient && s.has_room());
    if let Some(open) = open
        && state.dirty == 0
    {
        if state.data_live() < array.promised {
            let mut next = state.clone();
            next.dirty = 1;
            next.fill(open);
            go("a client writes a new block", Ok(next));
        }
        for at in 0..state.segs.len() {
            let seg = state.segs[at];
            let again = at > 0 && state.segs[at - 1] == seg && at - 1 != open && at != open;
            if seg.is_data() && seg.live > 0 && !again {
                let mut next = state.clone();
                next.dirty = 1;
                next.fill(open);
                next.kill(at);
                go("a client writes over a block", Ok(next));
            }
        }
    }
    if state.client.len() < array.claims
        && let Some(area) = client_area(state)
    {
        let mut next = state.clone();
        // Who holds and waits takes all there is.
        let all = array.planted == Planted::HoldAndWait;
        let count = if all {
            state.ledger.grant(Class::Client, area)
        } else {
            1
        };
        let claim = next.ledger.claim(Class::Client, area, count).unwrap();
        next.client.push((area, claim.number()));
        go("a client claims", Ok(next));
    }
    let waits = array.planted == Planted::HoldAndWait && state.dirty > 0;
    if open.is_none() && !waits {
        for at in 0..state.client.len() {
            if at > 0 && state.client[at].0 == state.client[at - 1].0 {
                continue;
            }
            let mut next = state.clone();
            let taken = acquire_for_client(&mut next, at);
            go(
                if taken {
                    "a client acquires"
                } else {
                    "a client gives back"
                },
                Ok(next),
            );
        }
    }
}

/// The group that a client writes to: the one with most redundancy, then most room.
fn client_area(state: &State) -> Option<Area> {
    let groups = state.areas().into_iter().skip(1);
    let granted = groups.map(|a| (state.ledger.grant(Class::Client, a), a));
    let granted = granted.filter(|(n, _)| *n > 0);
    let best =
        granted.max_by_key(|(n, a)| (state.plan().of(*a).redundancy(), *n, std::cmp::Reverse(*a)));
    best.map(|(_, area)| area)
}

/// Whether a client acquired what it had claimed; else it has given it back.
fn acquire_for_client(state: &mut State, at: usize) -> bool {
    let (area, number) = state.client.remove(at);
    let claim = Claim::from_number(number);
    let template = state.plan().of(area);
    let devices = state.ledger.acquire(&claim, &[]);
    if devices.is_some() && state.ledger.left(&claim).0 > 0 {
        state.client.insert(at, (area, number));
    } else {
        state.ledger.give_back(claim);
    }
    if let Some(devices) = &devices {
        state.add(area, template, devices, Use::OpenClient);
    }
    devices.is_some()
}

/// Whether a client that wants to write can, now.
pub fn client_can(state: &State) -> bool {
    let open = state
        .segs
        .iter()
        .any(|s| s.what == Use::OpenClient && s.has_room());
    open || client_area(state).is_some()
        || (0..state.client.len()).any(|at| acquire_for_client(&mut state.clone(), at))
        || client_area(&without_claims(state)).is_some()
}

/// Clients have given their claims back.
fn without_claims(state: &State) -> State {
    let mut without = state.clone();
    for (_, number) in std::mem::take(&mut without.client) {
        without.ledger.give_back(Claim::from_number(number));
    }
    without
}

/// Jobs under way.
pub fn in_flight(state: &State) -> usize {
    let busy = |s: &&Seg| matches!(s.what, Use::Victim(_) | Use::Columns { .. });
    state.segs.iter().filter(busy).count()
}

pub fn start_job(array: &Small, state: &State) -> Option<State> {
    if in_flight(state) >= array.jobs {
        return None;
    }
    let mut next = state.clone();
    let mut index = state.index(array);
    let mut ledger = state.ledger.clone();
    let (job, claim) = next_job(&mut index, &mut ledger, state, &array.policy())?;
    next.ledger = ledger;
    let number = claim.number();
    match job {
        Job::Columns { segment, to } => {
            let columns = ashlar_space::work::Table::columns(state, segment);
            let from = to.iter().filter_map(|(c, _)| columns[usize::from(*c)]);
            let from: u16 = from.map(|d| 1 << d).sum();
            let to: u16 = to.iter().map(|(_, d)| 1 << d).sum();
            next.segs[segment as usize].what = Use::Columns {
                to,
                from,
                acquired: false,
            };
            next.columns.push((to, number));
        }
        Job::Rewrite { segment, into } => {
            next.segs[segment as usize].what = Use::Victim(into);
            next.moves.push((into, number));
        }
        Job::Renew { segment } => {
            next.segs[segment as usize].what = Use::Victim(Area::Nodes);
            next.moves.push((Area::Nodes, number));
        }
        Job::Retry { .. } => unreachable!("no slot is quarantined"),
    }
    next.drop_empty_claims();
    Some(next)
}

impl State {
    /// Claims of moves of which nothing is left say nothing more.
    fn drop_empty_claims(&mut self) {
        let (keep, back): (Vec<_>, Vec<_>) = std::mem::take(&mut self.moves)
            .into_iter()
            .partition(|(_, n)| self.left(*n) > 0);
        self.moves = keep;
        for (_, number) in back {
            self.ledger.give_back(Claim::from_number(number));
        }
    }
}

/// One step of the job on a segment; nodes are renewed by checkpoints.
pub fn go_on(state: &State, at: usize) -> Option<State> {
    match state.segs[at].what {
        Use::Columns { to, acquired, .. } => Some(columns_go_on(state, at, to, acquired)),
        Use::Victim(into) if into != Area::Nodes => moves_go_on(state, at, into),
        _ => None,
    }
}

fn columns_go_on(state: &State, at: usize, to: u16, acquired: bool) -> State {
    let mut next = state.clone();
    if !acquired {
        let claims = next
            .columns
            .iter()
            .position(|(devices, _)| *devices == to)
            .unwrap();
        let claim = Claim::from_number(next.columns.remove(claims).1);
        let wanted = (0..16).filter(|d| to >> d & 1 == 1);
        let got: u16 = wanted
            .filter(|d| next.ledger.acquire_slot(&claim, *d))
            .map(|d| 1 << d)
            .sum();
        next.ledger.give_back(claim);
        if let Use::Columns { acquired, .. } = &mut next.segs[at].what {
            *acquired = true;
        }
        if got != to {
            // Some were taken meanwhile: what it got is free again after the next root.
            end_columns(&mut next, at, got);
        }
        return next;
    }
    let Use::Columns { to, from, .. } = next.segs[at].what else {
        unreachable!("as it was")
    };
    next.segs[at].on = next.segs[at].on & !from | to;
    end_columns(&mut next, at, from);
    next
}

/// The job on a segment's columns has ended, and leaves slots on these devices.
fn end_columns(state: &mut State, at: usize, left: u16) {
    state.segs[at].what = Use::Closed;
    let seg = state.segs[at];
    if left != 0 {
        let devices: Vec<u16> = (0..16).filter(|d| left >> d & 1 == 1).collect();
        state.ledger.expect(&devices);
        state.segs.push(Seg {
            on: left,
            written: 0,
            live: 0,
            what: Use::Dead,
            ..seg
        });
    }
    state.bury(at);
}

fn moves_go_on(state: &State, at: usize, into: Area) -> Option<State> {
    let mut next = state.clone();
    let open = |s: &Seg| s.what == Use::OpenMoves && s.area == into && s.has_room();
    if let Some(open) = next.segs.iter().position(open) {
        next.fill(open);
        next.kill(at);
        return Some(next);
    }
    let template = next.plan().of(into);
    let claims: Vec<u32> = next
        .moves
        .iter()
        .filter(|(a, _)| *a == into)
        .map(|(_, n)| *n)
        .collect();
    for number in &claims {
        if next.left(*number) > 0
            && let Some(devices) = next.ledger.acquire(&Claim::from_number(*number), &[])
        {
            next.add(into, template, &devices, Use::OpenMoves);
            next.drop_empty_claims();
            return Some(next);
        }
    }
    // Segments are laid otherwise since it was claimed: it takes more.
    if next.claimed(into) == 0
        && let Some(claim) = next.ledger.claim(Class::Clean, into, 1)
    {
        next.moves.push((into, claim.number()));
        return Some(next);
    }
    None
}

/// A job that cannot go on gives up: what it has moved stays moved.
pub fn give_up(state: &State) -> Option<State> {
    let busy = |s: &Seg| matches!(s.what, Use::Victim(_));
    let at = state.segs.iter().position(busy)?;
    let mut next = state.clone();
    let devices = next.segs[at].devices();
    next.ledger.unexpect(&devices);
    next.segs[at].what = Use::Closed;
    next.give_surplus_back();
    Some(next)
}

/// A checkpoint writes the nodes that are dirty, and renews as many; an adversary chooses which is dirty.
pub fn checkpoint_step(array: &Small, state: &State) -> Vec<Next> {
    let marked = |s: &Seg| s.what == Use::Victim(Area::Nodes);
    let due = state.dirty > 0 || state.segs.iter().any(|s| s.what == Use::Dead || marked(s));
    if state.roots >= 2 || !due {
        return Vec::new();
    }
    let full = if state.roots == 0 {
        vec![Err("a checkpoint does not end")]
    } else {
        Vec::new() // it waits for the root before
    };
    let mut after: Vec<(State, u32)> = Vec::new();
    if state.dirty > 0 {
        for at in 0..state.segs.len() {
            let seg = state.segs[at];
            if seg.is_data() || seg.live == 0 || (at > 0 && state.segs[at - 1] == seg) {
                continue;
            }
            let mut next = state.clone();
            next.dirty = 0;
            let before = next.segs.len();
            if !next.place_node() {
                return full;
            }
            let taken = (next.segs.len() - before) as u32;
            next.kill(at);
            after.push((next, taken));
        }
    } else {
        after.push((state.clone(), 0));
    }
    let tight = state.ledger.is_tight();
    let mut all = Vec::new();
    for (mut next, taken) in after {
        let victim = next.segs.iter().position(marked).or_else(|| {
            let owes = next.ledger.step_owes(taken);
            let index = next.index(array);
            sparsest_nodes(&index, &next.ledger, if owes { 0 } else { HALF })
                .filter(|_| owes || tight)
                .map(|n| n as usize)
        });
        if let Some(at) = victim {
            if !next.place_node() {
                return full;
            }
            next.kill(at);
        }
        next.roots += 1;
        let root = next.roots;
        for at in 0..next.segs.len() {
            if next.segs[at].what == Use::Dead {
                next.segs[at].what = Use::Freed(root);
                next.ledger.free_later(&next.segs[at].devices(), true);
            }
        }
        next.drop_empty_claims();
        all.push(Ok(next));
    }
    all
}

pub fn root(array: &Small, state: &State) -> Option<State> {
    if state.roots == 0 {
        return None;
    }
    let mut next = state.clone();
    next.roots -= 1;
    let (freed, kept) = next.segs.into_iter().partition(|s| s.what == Use::Freed(1));
    next.segs = kept;
    let freed: Vec<Seg> = freed;
    for seg in &freed {
        next.ledger.release(&seg.devices());
    }
    for seg in &mut next.segs {
        if let Use::Freed(root) = &mut seg.what {
            *root -= 1;
        }
    }
    next.replan(array);
    Some(next)
}

fn lose(array: &Small, state: &State, device: u16) -> Next {
    let mut next = state.clone();
    next.lost |= 1 << device;
    let bit = 1 << device;
    for at in 0..next.segs.len() {
        let had = next.segs[at].on & bit != 0;
        next.segs[at].on &= !bit;
        let seg = next.segs[at];
        if had && seg.is_open() {
            next.segs[at].what = Use::Closed; // it takes no more
            next.bury(at);
        }
        if let Use::Columns { to, from, acquired } = seg.what {
            let from = from & !bit;
            let claim = next.columns.iter().position(|(devices, _)| *devices == to);
            if to & bit == 0 {
                next.segs[at].what = Use::Columns { to, from, acquired };
                continue;
            }
            if acquired {
                end_columns(&mut next, at, to & !bit);
            } else {
                let claim = Claim::from_number(next.columns.remove(claim.unwrap()).1);
                next.ledger.give_back(claim);
                end_columns(&mut next, at, 0);
            }
        }
    }
    next.segs.retain(|s| s.on != 0 || s.live > 0);
    next.replan(array);
    let lost = |s: &&Seg| s.live > 0 && s.on.count_ones() < u32::from(s.k);
    if next.segs.iter().any(|s| lost(&s)) {
        return Err("data are lost within M");
    }
    Ok(next)
}

/// What must hold in every state.
pub fn check(array: &Small, state: &State) -> Result<(), &'static str> {
    state
        .ledger
        .audit()
        .map_err(|_| "the sums of the ledger are wrong")?;
    for device in 0..state.ledger.topology().members().len() as u16 {
        let mut counts = [0; 3];
        for seg in &state.segs {
            let there = seg.on >> device & 1 == 1;
            let acquired = matches!(seg.what, Use::Columns { to, acquired: true, .. } if to >> device & 1 == 1);
            let freed = matches!(seg.what, Use::Freed(_));
            let due = matches!(seg.what, Use::Victim(_) | Use::Dead);
            counts[0] += u32::from(there && !freed) + u32::from(acquired);
            counts[1] += u32::from(there && freed);
            counts[2] += u32::from(there && due);
        }
        let book = state.ledger.book(device);
        if counts != [book.used, book.freed, book.due] {
            return Err("a slot is given twice, or lost");
        }
    }
    let nodes: u64 = state
        .segs
        .iter()
        .filter(|s| !s.is_data())
        .map(|s| s.live)
        .sum();
    if nodes != array.nodes {
        return Err("a node is lost");
    }
    Ok(())
}
