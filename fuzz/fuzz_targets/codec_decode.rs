//! Decoding with any shape, any loss, any wanted strips and any lengths: it answers with an error or
//! with the right bytes, and never panics.
#![no_main]

use ashlar_codec::{Code, CodeError, CodeKind, kernels};
use libfuzzer_sys::fuzz_target;

/// Takes the input apart; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let kind = CodeKind::from_tag(input.byte() % 7).unwrap_or(CodeKind::IsalCauchy);
    let (k, m) = (usize::from(input.byte()), usize::from(input.byte()));
    let names: Vec<&str> = kernels().map(|kernel| kernel.name).collect();
    let name = names[usize::from(input.byte()) % names.len()];
    let code = match Code::with_kernel(kind, k, m, name) {
        Ok(code) => code,
        Err(CodeError::Shape { .. }) => {
            assert!(k == 0 || k + m > 256);
            return;
        }
        Err(error) => {
            assert_eq!(error, CodeError::NotMds { kind, k, m });
            return;
        }
    };
    let code = if input.byte() & 1 == 1 {
        code.streamed()
    } else {
        code
    };

    // A true codeword.
    let len = usize::from(input.byte()) * 2 + usize::from(input.byte() & 1);
    let seed = input.byte();
    let data: Vec<Vec<u8>> = (0..k)
        .map(|strip| {
            (0..len)
                .map(|at| (at * 31 + strip * 7) as u8 ^ seed)
                .collect()
        })
        .collect();
    let mut truth = data.clone();
    truth.resize(k + m, vec![0; len]);
    let (read, write) = truth.split_at_mut(k);
    let read: Vec<&[u8]> = read.iter().map(Vec::as_slice).collect();
    code.encode(
        &read,
        &mut write.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
    );
    let views: Vec<&[u8]> = truth.iter().map(Vec::as_slice).collect();
    assert!(code.verify(&views[..k], &views[k..]));

    // Any loss, any wish, sometimes a wrong count or length.
    let mut strips: Vec<Option<&[u8]>> = views.iter().map(|strip| Some(*strip)).collect();
    for _ in 0..input.byte() {
        let lost = usize::from(input.byte()) % (k + m);
        strips[lost] = None;
    }
    match input.byte() {
        1 => drop(strips.pop()),
        2 => strips.push(None),
        3 => strips[0] = Some(&views[0][..len / 2]),
        _ => {}
    }
    let wanted: Vec<usize> = (0..input.byte() % 8)
        .map(|_| usize::from(input.byte()))
        .collect();
    let buffers = wanted.len() + usize::from(input.byte() == 9);
    let mut out = vec![vec![0xa5u8; if input.byte() == 9 { len + 1 } else { len }]; buffers];
    let mut slices: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    match code.decode(&strips, &wanted, &mut slices) {
        Ok(()) => {
            for (out, &strip) in out.iter().zip(&wanted) {
                assert_eq!(*out, truth[strip]);
            }
        }
        Err(error) => {
            let enough = strips.len() == k + m && strips.iter().flatten().count() >= k;
            let distinct = (1..wanted.len()).all(|at| !wanted[..at].contains(&wanted[at]));
            let known = wanted.iter().all(|&strip| strip < k + m);
            let equal = strips.iter().flatten().all(|strip| strip.len() == len)
                && out.iter().all(|out| out.len() == len);
            let right = enough && distinct && known && equal && buffers == wanted.len();
            assert!(!right, "{error:?}");
        }
    }
});
