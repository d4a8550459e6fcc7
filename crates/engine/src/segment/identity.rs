//! Identity of an array's blocks and nodes.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::context::Context;
use ashlar_rt::{BLOCK, Rt};

/// Blocks of a request that are hashed without company: more in a call would save less than a tenth.
const ENOUGH: usize = 4;

/// The identity of an array, and the key of its digests.
#[derive(Debug)]
pub struct Identity {
    /// The identity, which stands in all that is written.
    pub array: [u8; 16],
    /// The key.
    pub key: [u8; 32],
    /// Blocks of small requests whose digests are asked for.
    waiting: RefCell<Vec<Rc<Waiting>>>,
}

/// Bytes of a request, which a digest is computed of while the request may be dropped.
pub type Bytes = Rc<dyn Deref<Target = [u8]>>;

/// The blocks of a small request.
struct Waiting {
    /// Volume and first block.
    at: (u32, u64),
    bytes: RefCell<Option<Bytes>>,
    digests: RefCell<Vec<[u8; 16]>>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("at", &self.at).finish()
    }
}

impl Identity {
    /// Those of an array.
    pub fn new(array: [u8; 16], key: [u8; 32]) -> Identity {
        let waiting = RefCell::default();
        Identity {
            array,
            key,
            waiting,
        }
    }

    /// The digest of a block, cut to 16 bytes.
    pub fn digest(&self, kind: Kind, context: Context, bytes: &[u8]) -> [u8; 16] {
        ashlar_digest::block(kind, &self.key, context.bytes(), bytes)
    }

    /// The digest of a volume block.
    pub fn block_digest(&self, kind: Kind, tree: u32, address: u64, bytes: &[u8]) -> [u8; 16] {
        self.digest(kind, Context::block(tree, address), bytes)
    }

    /// The digests of blocks of a volume that follow each other, `unit` bytes each, computed side by side.
    pub fn block_digests(
        &self,
        kind: Kind,
        (tree, first): (u32, u64),
        bytes: &[u8],
        unit: usize,
    ) -> Vec<[u8; 16]> {
        let context = |(address, bytes)| (Context::block(tree, address), bytes);
        let blocks: Vec<_> = (first..).zip(bytes.chunks(unit)).map(context).collect();
        let mut digests = vec![[0; 16]; blocks.len()];
        ashlar_digest::blocks(kind, &self.key, &blocks, &mut digests);
        digests
    }

    /// The same, side by side also with the blocks of other requests. A block of 4 KiB fills a quarter of a vector or
    /// less, so a small request lets every task that is ready run once; the first that runs again computes the digests
    /// of all that have come. Bytes are let go of when this is done.
    pub async fn digests_in_company(
        &self,
        rt: &Rt,
        kind: Kind,
        at: (u32, u64),
        bytes: Bytes,
        unit: usize,
    ) -> Vec<[u8; 16]> {
        if kind != Kind::Blake3 || unit != BLOCK || bytes.len() >= ENOUGH * unit {
            return self.block_digests(kind, at, &bytes, unit);
        }
        let waiting = Rc::new(Waiting {
            at,
            bytes: RefCell::new(Some(bytes)),
            digests: RefCell::default(),
        });
        self.waiting.borrow_mut().push(waiting.clone());
        rt.yield_now().await;
        if waiting.bytes.borrow().is_some() {
            self.hash_waiting();
        }
        waiting.digests.take()
    }

    /// Computes the digests that are waited for.
    fn hash_waiting(&self) {
        let all = self.waiting.take();
        let bytes: Vec<_> = all.iter().filter_map(|one| one.bytes.take()).collect();
        let mut blocks = Vec::with_capacity(all.len());
        for (one, bytes) in all.iter().zip(&bytes) {
            let (tree, first) = one.at;
            let each = (first..).zip(bytes.chunks(BLOCK));
            blocks.extend(each.map(|(address, bytes)| (Context::block(tree, address), bytes)));
        }
        let mut digests = vec![[0; 16]; blocks.len()];
        ashlar_digest::blocks(Kind::Blake3, &self.key, &blocks, &mut digests);
        let mut digests = digests.into_iter();
        for (one, bytes) in all.iter().zip(&bytes) {
            let count = bytes.len().div_ceil(BLOCK);
            one.digests
                .borrow_mut()
                .extend(digests.by_ref().take(count));
        }
    }

    /// The digest of a tree's node.
    pub fn node_digest(
        &self,
        tree: u32,
        partition: u16,
        level: u8,
        index: u64,
        bytes: &[u8],
    ) -> [u8; 16] {
        let context = Context::node(tree, partition, level, index);
        self.digest(Kind::Blake3, context, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests that are taken side by side are those taken one by one, and each is bound to its address.
    #[test]
    fn a_digest_is_bound_to_its_block() {
        let identity = Identity::new([1; 16], [2; 32]);
        let bytes = [7; 3 * 4096];
        let together = identity.block_digests(Kind::Blake3, (16, 40), &bytes, 4096);
        let one = |address| identity.block_digest(Kind::Blake3, 16, address, &bytes[..4096]);
        assert_eq!(together, vec![one(40), one(41), one(42)]);
        assert_ne!(one(40), one(41));
        let node = |level| identity.node_digest(16, 0, level, 40, &bytes[..4096]);
        assert_ne!(node(0), node(1));
        let other = Identity::new([1; 16], [3; 32]);
        assert_ne!(
            other.block_digest(Kind::Blake3, 16, 40, &bytes[..4096]),
            one(40)
        );
    }

    /// Whoever asks at the same time gets the digests of its own blocks; who has gone by then does no harm.
    #[test]
    fn small_requests_are_hashed_together() {
        let rt = Rt::simulated(1);
        let identity = Rc::new(Identity::new([1; 16], [2; 32]));
        let request = |number: u64, blocks: usize| {
            let (identity, handle) = (identity.clone(), rt.clone());
            let bytes = vec![number as u8; blocks * BLOCK];
            async move {
                let alone = identity.block_digests(Kind::Blake3, (16, number), &bytes, BLOCK);
                let shared: Bytes = Rc::new(bytes);
                let given = identity.digests_in_company(
                    &handle,
                    Kind::Blake3,
                    (16, number),
                    shared.clone(),
                    BLOCK,
                );
                assert_eq!(given.await, alone);
                assert_eq!(Rc::strong_count(&shared), 1, "let go of");
            }
        };
        let all: Vec<_> = (0..40)
            .map(|n| rt.spawn(request(n, n as usize % 5 + 1)))
            .collect();
        let mut gone = std::pin::pin!(request(50, 1));
        let polled = std::future::Future::poll(
            gone.as_mut(),
            &mut std::task::Context::from_waker(std::task::Waker::noop()),
        );
        assert!(polled.is_pending());
        rt.block_on(async move {
            for one in all {
                one.await;
            }
        });
        assert!(identity.waiting.borrow().is_empty());
    }
}
