//! Test beds: an enclosure of named drives with its ports, and the hosts at it, as papers describe them.
//!
//! **Invariants**: what has no source is listed as assumed; the drives of an array lie on different
//! drives of the bed; namespaces of one drive do not overlap.

use std::rc::Rc;

use ashlar_rt::Rt;

use super::{Content, Link, ModelDevice, ModelOptions, Namespace, Path, Profile};

/// Ports and links of a bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Drives behind one port of each I/O module.
    pub group: usize,
    /// I/O modules: paths to each drive.
    pub modules: usize,
    /// Content that a port carries in each direction, bytes per second.
    pub port_bytes_per_second: u64,
    /// Content that a host's link carries in each direction, bytes per second; 0: no limit.
    pub host_bytes_per_second: u64,
}

/// A test bed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bed {
    /// Its name in options and results.
    pub name: &'static str,
    /// The drives.
    pub drive: Profile,
    /// How many there are; 0: as many as are asked for.
    pub drives: usize,
    /// Hosts: arrays that are used at once unless said otherwise.
    pub hosts: usize,
    /// Ports and links; `None`: the drives are at hand.
    pub network: Option<Network>,
    /// Where the figures come from.
    pub source: &'static str,
    /// What has no source.
    pub assumed: &'static [&'static str],
}

/// A bed made.
#[derive(Debug)]
pub struct Built {
    /// The namespaces of each array.
    pub arrays: Vec<Vec<Rc<Namespace>>>,
    /// The drives in use.
    pub drives: Vec<Rc<ModelDevice>>,
    /// Ports in use, module by module.
    pub ports: Vec<Rc<Link>>,
    /// Hosts' links.
    pub hosts: Vec<Rc<Link>>,
}

impl Bed {
    /// SupremeRAID's: OpenFlex Data24 with three ports of 100 Gb/s on each of two modules, six servers.
    pub const DATA24: Bed = Bed {
        name: "data24",
        drive: Profile::DATA24_DRIVE,
        drives: 24,
        hosts: 6,
        network: Some(Network {
            group: 8,
            modules: 2,
            port_bytes_per_second: 11_920_000_000,
            host_bytes_per_second: 11_920_000_000,
        }),
        source: "SupremeRAID SR-1000 white paper V1.1 (2022): 24 drives as 48 namespaces, six servers, 71.5 GB/s over six ports",
        assumed: &[
            "A port and a server's link carry 11.92 GB/s of content in each direction: the paper's 71.5 GB/s / 6.",
            "A drive behind the enclosure is as fast as the baseline / 24; which of drive, controller and port limits it is not known.",
        ],
    };

    /// xiRAID's: OpenFlex Data24 3200 and one server with one port of 100 Gb/s.
    pub const DATA24_3200: Bed = Bed {
        name: "data24-3200",
        drive: Profile::DATA24_3200,
        drives: 24,
        hosts: 1,
        network: Some(Network {
            group: 8,
            modules: 2,
            port_bytes_per_second: 11_900_000_000,
            host_bytes_per_second: 11_800_000_000,
        }),
        source: "xiRAID white paper (2023): one server; 71.4 GB/s over six ports; sequential reads of 11.80 GB/s",
        assumed: &[
            "The server's link carries 11.80 GB/s of content in each direction: the most the paper shows.",
            "The drives write as those of the earlier enclosure.",
        ],
    };

    /// NSULATE's: 100 hard disks at one SAS controller.
    pub const ORION100: Bed = Bed {
        name: "orion100",
        drive: Profile::ORION,
        drives: 100,
        hosts: 1,
        network: Some(Network {
            group: 100,
            modules: 1,
            port_bytes_per_second: 6_400_000_000,
            host_bytes_per_second: 0,
        }),
        source: "NSULATE white paper: 100 SATA drives of 2 TB at one SAS3008 controller",
        assumed: &[
            "The controller carries 6.4 GB/s in each direction: PCIe 3.0 with 8 lanes.",
            "Zones and seek are those of other drives of the class; a full-size drive is not modelled: the array lies in the drive's outermost part, and zones are scaled to it.",
        ],
    };

    /// GridRAID's: one OST of 41 drives.
    pub const SONEXION: Bed = Bed {
        name: "sonexion",
        drive: Profile::SONEXION,
        drives: 41,
        hosts: 1,
        network: None,
        source: "Sonexion GridRAID Characteristics (Cray, 2014): 98 to 58 MB/s per drive",
        assumed: &[
            "The enclosure and the server are not in the way; zones are scaled to the part of the drive that is used.",
        ],
    };

    /// All named beds.
    pub const ALL: [Bed; 4] = [Bed::DATA24, Bed::DATA24_3200, Bed::ORION100, Bed::SONEXION];

    /// The bed of this name, or drives of the profile of this name at hand.
    pub fn named(name: &str) -> Option<Bed> {
        let plain = |drive: Profile| Bed {
            name: drive.name,
            drive,
            drives: 0,
            hosts: 1,
            network: None,
            source: drive.source,
            assumed: &[],
        };
        let bed = Bed::ALL.into_iter().find(|bed| bed.name == name);
        bed.or_else(|| Profile::named(name).map(plain))
    }

    /// Drives of array `array` of `columns` columns. Arrays of at most a group lie in a group, one after
    /// another; wider ones take the first drives of each group in turn.
    fn place(&self, array: usize, columns: usize, drives: usize) -> Vec<usize> {
        let group = self.network.map_or(drives, |network| network.group);
        if columns <= group || drives <= group {
            let first = array * columns;
            return (0..columns).map(|c| (first + c) % drives).collect();
        }
        let groups = drives / group;
        let of = |c: usize| (c % groups) * group + (c / groups + array) % group;
        (0..columns).map(of).collect()
    }

    /// Makes `arrays` sets of `columns` namespaces of `bytes` each, in slots of `slot_bytes`; each array
    /// is used by its own host as long as there are hosts.
    ///
    /// # Errors
    /// If the bed has fewer drives than an array has columns, for people.
    pub fn build(
        &self,
        rt: &Rt,
        (arrays, columns): (usize, usize),
        bytes: u64,
        slot_bytes: u64,
        content: Content,
    ) -> Result<Built, String> {
        let drives = if self.drives == 0 {
            arrays * columns
        } else {
            self.drives
        };
        if columns > drives {
            return Err(format!(
                "{} has {drives} drives, fewer than the {columns} of one array",
                self.name
            ));
        }
        let places: Vec<Vec<usize>> = (0..arrays)
            .map(|array| self.place(array, columns, drives))
            .collect();
        let shared = |drive: usize| places.iter().flatten().filter(|d| **d == drive).count();
        let options = |drive| ModelOptions {
            content,
            slot_bytes,
            erased: content == Content::Store,
            ..ModelOptions::new(bytes * shared(drive).max(1) as u64)
        };
        let all: Vec<Rc<ModelDevice>> = (0..drives)
            .map(|d| ModelDevice::new(rt, &format!("drive{d}"), self.drive, options(d)).into())
            .collect();
        let ports = self.ports(drives);
        let hosts = self.host_links(arrays);
        let mut used = vec![0u64; drives];
        let mut built = Vec::new();
        for (array, places) in places.iter().enumerate() {
            let mut set = Vec::new();
            for drive in places {
                let paths = self.paths(&ports, &hosts, array, *drive);
                let name = format!("drive{drive}n{}", used[*drive] + 1);
                let begin = used[*drive] * bytes;
                used[*drive] += 1;
                let drive = all[*drive].clone();
                set.push(Namespace::new(rt, &name, drive, begin, bytes, paths).into());
            }
            built.push(set);
        }
        let in_use = |d: &usize| used[*d] > 0;
        Ok(Built {
            arrays: built,
            drives: (0..drives).filter(in_use).map(|d| all[d].clone()).collect(),
            ports: ports.into_iter().flatten().collect(),
            hosts,
        })
    }

    fn ports(&self, drives: usize) -> Vec<Vec<Rc<Link>>> {
        let Some(network) = self.network else {
            return Vec::new();
        };
        let rate = network.port_bytes_per_second;
        let port = |module: usize, group: usize| Link::new(&format!("port {module}.{group}"), rate);
        let groups = drives.div_ceil(network.group);
        (0..network.modules)
            .map(|module| (0..groups).map(|group| port(module, group)).collect())
            .collect()
    }

    fn host_links(&self, arrays: usize) -> Vec<Rc<Link>> {
        let rate = self.network.map_or(0, |n| n.host_bytes_per_second);
        let count = if rate == 0 { 0 } else { self.hosts.min(arrays) };
        (0..count)
            .map(|host| Link::new(&format!("host {host}"), rate))
            .collect()
    }

    fn paths(
        &self,
        ports: &[Vec<Rc<Link>>],
        hosts: &[Rc<Link>],
        array: usize,
        drive: usize,
    ) -> Vec<Path> {
        let group = self.network.map_or(1, |network| network.group);
        let host = (!hosts.is_empty()).then(|| hosts[array % hosts.len()].clone());
        let path = |module: &Vec<Rc<Link>>| {
            let port = module[drive / group].clone();
            Path(std::iter::once(port).chain(host.clone()).collect())
        };
        ports.iter().map(path).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn arrays_lie_where_the_papers_put_them() {
        // Six arrays of eight: two to each pack.
        assert_eq!(Bed::DATA24.place(0, 8, 24), (0..8).collect::<Vec<_>>());
        assert_eq!(Bed::DATA24.place(4, 8, 24), (8..16).collect::<Vec<_>>());
        // Nine: the first three drives of each pack.
        let mut nine = Bed::DATA24_3200.place(0, 9, 24);
        nine.sort_unstable();
        assert_eq!(nine, [0, 1, 2, 8, 9, 10, 16, 17, 18]);
    }

    #[test]
    fn beds_are_found_by_name_and_profiles_stand_for_themselves() {
        for bed in Bed::ALL {
            assert_eq!(Bed::named(bed.name), Some(bed));
        }
        let plain = Bed::named("nvme-tlc").unwrap();
        assert_eq!((plain.drives, plain.network), (0, None));
        assert_eq!(Bed::named("floppy"), None);
        let rt = Rt::simulated(1);
        let error = Bed::DATA24.build(&rt, (1, 25), 1 << 20, 1 << 20, Content::Discard);
        assert!(error.unwrap_err().contains("24 drives"));
    }
}
