//! The devices that count, and those of them that hold roots.
//!
//! Invariant: functions of the members and their domains; nothing is written here.

use ashlar_format::superblock::MemberEntry;
use ashlar_space::domains::Domains;

use crate::members::duties::Duties;

/// What is done where fewer than half of the devices counted before have stored a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// Writes wait for the operator.
    Awaited,
    /// The array stops: it is being imported, and no operator can speak to it. As safe as a power cut.
    Needed,
    /// It goes on: the operator has said so.
    Forced,
}

/// The devices that hold roots: all up to 16, else max(2M + 3, 9), spread over the domains, where M is how many
/// devices can be lost with every segment readable; at most as many as a superblock names.
pub fn choose_root_set(online: &[u16], most_lost: usize, domains: &Domains) -> Vec<u16> {
    if online.len() <= 16 {
        return online.to_vec();
    }
    let mut by_domain = online.to_vec();
    by_domain.sort_by_key(|d| (domains.of(*d), *d));
    let count = (2 * most_lost + 3).clamp(9, 256).min(online.len());
    let mut chosen: Vec<u16> = (0..count)
        .map(|i| by_domain[i * by_domain.len() / count])
        .collect();
    chosen.sort_unstable();
    chosen
}

/// Indexes of the members that a generation with this member table counts.
pub fn online_members(members: &[MemberEntry]) -> impl Iterator<Item = usize> + '_ {
    let members = members.iter().enumerate();
    members
        .filter(|(_, m)| Duties::of(m.state, true).counted)
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn few_devices_all_hold_roots_and_many_as_many_as_may_be_lost() {
        let domains = Domains::new(std::iter::empty());
        let devices = |n: u16| (0..n).collect::<Vec<u16>>();
        assert_eq!(choose_root_set(&devices(16), 2, &domains), devices(16));
        for (most_lost, count) in [(0, 9), (3, 9), (4, 11), (40, 83), (400, 256)] {
            let chosen = choose_root_set(&devices(900), most_lost, &domains);
            assert_eq!(chosen.len(), count, "{most_lost}");
            assert!(chosen.is_sorted());
        }
    }

    /// In 20 enclosures of 5 no two roots of 9 share one.
    #[test]
    fn roots_are_spread_over_domains() {
        let labels: Vec<String> = (0..100).map(|d| format!("{}", d % 20)).collect();
        let domains = Domains::new(labels.iter().map(String::as_str));
        let chosen = choose_root_set(&(0..100).collect::<Vec<u16>>(), 2, &domains);
        let most = domains.count(chosen.iter().copied()).into_values().max();
        assert_eq!((chosen.len(), most), (9, Some(1)));
    }
}
