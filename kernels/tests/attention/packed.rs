//! Batches of every backend against the same work one piece after the other: equal to the last bit.

use std::ops::Range;

use asterism_kernels::prelude::*;
use asterism_kernels::reference::{self, AttentionShape};
use asterism_kernels::{Ask, Cpu, DType, Heads, Mask, Merging, batch, packed};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::common::{assert_close, backends, numbers, rounded};
use crate::on_every_cache;

/// Jobs with their rows; each asks shards of these many keys.
#[derive(Clone, Debug)]
struct Batch {
    heads: Heads,
    jobs: Vec<(usize, Vec<usize>)>,
    streaming: bool,
}

fn batch() -> impl Strategy<Value = Batch> {
    let heads = (1usize..=3, 1usize..=2, prop::sample::select(vec![16usize, 32, 64]));
    let shards = vec(prop_oneof![0usize..4, 1usize..300], 1..4);
    let jobs = vec((prop_oneof![3 => Just(1usize), 1 => 2usize..40], shards), 1..6);
    (heads, jobs, any::<bool>()).prop_map(|((group, kv, dim), jobs, streaming)| Batch {
        heads: Heads { query: group * kv, kv, dim },
        jobs,
        streaming,
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn batches_are_their_parts<B: Backend>(backend: &B, batch: &Batch) -> Result<(), TestCaseError> {
    let Batch { heads, jobs, streaming } = batch;
    let Heads { query, kv, dim } = *heads;
    let draw = |shape: &[usize], salt: usize| {
        let values = rounded(backend.dtype(), numbers(shape.iter().product(), salt as u64));
        backend.cast(&backend.upload(shape, &values).unwrap()).unwrap()
    };
    let rows: usize = jobs.iter().map(|(rows, _)| rows).sum();
    let first = draw(&[query, rows, dim], 1);
    let q = backend.row_major(&first).unwrap();
    let same = asterism_kernels::heads::row_major(backend, &first).unwrap();
    prop_assert_eq!(bits(&backend.download(&q).unwrap()), bits(&backend.download(&same).unwrap()));
    let shards: Vec<B::Kv> = jobs
        .iter()
        .flat_map(|(_, shards)| shards)
        .enumerate()
        .map(|(at, &keys)| {
            backend.kv_kept(&draw(&[kv, keys, dim], 2 * at + 2), &draw(&[kv, keys, dim], 2 * at + 3)).unwrap()
        })
        .collect();
    let (mut asks, mut start, mut next) = (Vec::new(), 0, shards.iter());
    for (rows, shards) in jobs {
        for _ in shards {
            let window = Mask::Streaming { sink: 3, window: 50, first_row: 200, first_key: 0 };
            let mask = if *streaming { window } else { Mask::None };
            asks.push(Ask { kv: next.next().unwrap(), rows: start..start + rows, mask, holes: &[] });
        }
        start += rows;
    }
    let (mut many, mut each) = (vec![7.0], vec![7.0]);
    backend.attend_many(*heads, &q, &asks, &mut many).unwrap();
    batch::attend_each(backend, *heads, &q, &asks, &mut each).unwrap();
    prop_assert_eq!(bits(&many), bits(&each));
    let (mut parts, mut rest) = (Vec::new(), &many[1..]);
    for (rows, shards) in jobs {
        let mut part = Vec::new();
        for _ in shards {
            let (partial, after) = rest.split_at(rows * heads.packed_row());
            part.push(partial);
            rest = after;
        }
        parts.push(part);
    }
    let on_host = |x: &B::Tensor| (backend.shape(x), backend.download(x).unwrap());
    let together = on_host(&backend.merge_packed(*heads, &parts).unwrap());
    let apart = on_host(&batch::merge_each(backend, *heads, &parts).unwrap());
    let host = on_host(&batch::merge_on_host(backend, *heads, &parts).unwrap());
    prop_assert_eq!(&together.0, &apart.0);
    prop_assert_eq!(&together.0, &host.0);
    assert_close(backend.dtype(), &together.1, &apart.1)?;
    assert_close(backend.dtype(), &host.1, &apart.1)?;
    let (mut together, mut apart, mut host) = (vec![5.0], vec![5.0], vec![5.0]);
    backend.merge_rows(*heads, &parts, &mut together).unwrap();
    batch::merge_each_row(backend, *heads, &parts, &mut apart).unwrap();
    packed::merge_rows_on_host(*heads, &parts, &mut host).unwrap();
    assert_close(DType::F32, &together, &apart)?;
    assert_close(DType::F32, &host, &apart)?;
    let groups: Vec<usize> = jobs.iter().map(|(_, shards)| shards.len()).collect();
    let at_once = batch::attend_rows(backend, *heads, &q, (&asks, &groups)).unwrap();
    prop_assert_eq!(bits(&backend.download(&at_once).unwrap()), bits(&together[1..]), "groups merged on the host");
    let mut seen = 0;
    let next = |shards: &usize| -> Vec<usize> {
        seen += shards;
        (seen - shards..seen).collect()
    };
    let level: Vec<Vec<usize>> = groups.iter().map(next).collect();
    // Each job's shards together, and the first of them once more.
    let tops = level.iter().enumerate().map(|(job, shards)| vec![asks.len() + job, shards[0]]).collect();
    let tree = Merging { levels: vec![level], tops };
    let here = on_host(&backend.attend_tree(*heads, &q, (&asks, &[]), &tree).unwrap());
    let host = on_host(&batch::attend_tree(backend, *heads, &q, (&asks, &[]), &tree).unwrap());
    prop_assert_eq!(here.0, host.0);
    prop_assert_eq!(bits(&here.1), bits(&host.1), "merged where it is attended");
    let kept = backend.attend_rows(*heads, &q, (&asks, &groups)).unwrap();
    prop_assert_eq!(bits(&backend.download(&kept).unwrap()), bits(&together[1..]), "merged groups, where they are");
    let packed = backend.attend_packed(*heads, &q, (&asks, &groups)).unwrap();
    prop_assert_eq!(bits(&packed), bits(&together[1..]), "merged groups, on the host");
    let kept = backend.attend_rows(*heads, &q, (&asks, &vec![1; asks.len()])).unwrap();
    prop_assert_eq!(bits(&backend.download(&kept).unwrap()), bits(&many[1..]));
    let (mut given, mut end) = (Vec::new(), 0);
    for ask in &asks {
        given.push(backend.rows(&kept, end, end + ask.rows.len()).unwrap());
        end += ask.rows.len();
    }
    let given = on_host(&backend.attend_tree(*heads, &q, (&[], &given), &tree).unwrap());
    prop_assert_eq!(bits(&here.1), bits(&given.1), "rows that are given");
    let of_ask = |ask: &Ask<'_, B::Kv>| {
        (backend.narrow(&first, 1, ask.rows.start, ask.rows.end).unwrap(), ask.kv.clone(), ask.mask)
    };
    let calls: Vec<_> = asks.iter().map(of_ask).collect();
    for ((q, kv, mask), output) in calls.iter().zip(backend.attention_each(&calls).unwrap()) {
        let alone = backend.attention(q, kv, *mask).unwrap().output;
        prop_assert_eq!(bits(&backend.download(&output).unwrap()), bits(&backend.download(&alone).unwrap()));
    }
    Ok(())
}

/// The processor's own are those of [`AttentionOps::merge`], to the last bit.
fn merges_have_the_bits_of_merge(backend: &Cpu, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<(), TestCaseError> {
    let of = |x| bits(&backend.download(&x).unwrap());
    let together = of(backend.merge_packed(heads, parts).unwrap());
    prop_assert_eq!(together, of(batch::merge_each(backend, heads, parts).unwrap()));
    let (mut together, mut apart) = (Vec::new(), Vec::new());
    backend.merge_rows(heads, parts, &mut together).unwrap();
    batch::merge_each_row(backend, heads, parts, &mut apart).unwrap();
    prop_assert_eq!(bits(&together), bits(&apart));
    Ok(())
}

/// Keys in holes are as if they were not there, for one ask and for a group of two.
fn holes_hide_keys<B: Backend>(
    backend: &B,
    heads: Heads,
    (rows, keys): (usize, usize),
    holes: &[Range<usize>],
) -> Result<(), TestCaseError> {
    let Heads { query, kv, dim } = heads;
    let draw = |count: usize, salt: u64| rounded(backend.dtype(), numbers(count, salt));
    let up = |shape: &[usize], values: &[f32]| backend.cast(&backend.upload(shape, values).unwrap()).unwrap();
    let [q, k, v] = [draw(query * rows * dim, 1), draw(kv * keys * dim, 2), draw(kv * keys * dim, 3)];
    let whole = backend.kv_kept(&up(&[kv, keys, dim], &k), &up(&[kv, keys, dim], &v)).unwrap();
    let all = AttentionShape { heads, queries: rows, keys, mask: Mask::None };
    let [k, v] = crate::held(backend, all, &k, &v);
    let x = backend.row_major(&up(&[query, rows, dim], &q)).unwrap();
    let left: Vec<usize> = (0..keys).filter(|key| !holes.iter().any(|hole| hole.contains(key))).collect();
    let of = |x: &[f32]| -> Vec<f32> {
        let row = |(head, key): (usize, usize)| x[(head * keys + key) * dim..][..dim].to_vec();
        (0..kv).flat_map(|head| left.iter().map(move |key| (head, *key))).flat_map(row).collect()
    };
    let shape = AttentionShape { heads, queries: rows, keys: left.len(), mask: Mask::None };
    let (output, lse) = reference::attention(&q, &of(&k), &of(&v), shape);
    let mut expected = Vec::new();
    for row in 0..rows {
        (0..query).for_each(|head| expected.extend_from_slice(&output[(head * rows + row) * dim..][..dim]));
        expected.extend((0..query).map(|head| lse[head * rows + row]));
    }
    let ask = || Ask { kv: &whole, rows: 0..rows, mask: Mask::None, holes };
    let (mut many, mut each) = Default::default();
    backend.attend_many(heads, &x, &[ask()], &mut many).unwrap();
    batch::attend_each(backend, heads, &x, &[ask()], &mut each).unwrap();
    let mut twice = backend.download(&backend.attend_rows(heads, &x, (&[ask(), ask()], &[2])).unwrap()).unwrap();
    assert_close(backend.dtype(), &many, &expected)?;
    assert_close(backend.dtype(), &each, &expected)?;
    let tree = Merging { levels: Vec::new(), tops: vec![vec![0, 1]] };
    let here = backend.download(&backend.attend_tree(heads, &x, (&[ask(), ask()], &[]), &tree).unwrap()).unwrap();
    let outputs = twice.chunks_exact(heads.packed_row()).flat_map(|row: &[f32]| row[..query * dim].to_vec());
    assert_close(backend.dtype(), &here, &outputs.collect::<Vec<f32>>())?;
    for (row, one) in twice.chunks_exact_mut(heads.packed_row()).zip(many.chunks_exact(heads.packed_row())) {
        row[query * dim..].iter_mut().for_each(|lse| *lse -= 2f32.ln());
        assert_close(backend.dtype(), row, one)?;
    }
    Ok(())
}

/// Ascending ranges of `keys` keys, some of them empty or side by side.
fn holes(keys: usize) -> impl Strategy<Value = Vec<Range<usize>>> {
    vec(0..=keys, 0..12).prop_map(|mut ends| {
        ends.sort_unstable();
        ends.chunks_exact(2).map(|ends| ends[0]..ends[1]).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn keys_in_holes_are_not_seen(
        (group, kv, dim) in (1usize..=3, 1usize..=2, prop::sample::select(vec![16usize, 32, 64])),
        rows in prop_oneof![3 => 1usize..4, 1 => 4usize..40],
        (keys, holes) in (1usize..400).prop_flat_map(|keys| (Just(keys), holes(keys))),
    ) {
        let heads = Heads { query: group * kv, kv, dim };
        on_every_cache!(backend => { holes_hide_keys(backend, heads, (rows, keys), &holes)?; });
    }

    #[test]
    fn merged_rows_have_the_bits_of_merge(seeds in vec((1usize..5, 1usize..9), 1..5), salt in any::<u64>()) {
        let heads = Heads { query: 4, kv: 2, dim: 32 };
        let partial = |rows: usize, salt: u64| {
            let mut values = numbers(rows * heads.packed_row(), salt);
            if salt.is_multiple_of(5) {
                values.chunks_exact_mut(heads.packed_row()).for_each(|row| row[128..].fill(f32::NEG_INFINITY));
            }
            values
        };
        let each = |(at, (shards, rows)): (usize, &(usize, usize))| -> Vec<Vec<f32>> {
            (0..*shards).map(|shard| partial(*rows, salt.wrapping_add((at * 10 + shard) as u64))).collect()
        };
        let values: Vec<Vec<Vec<f32>>> = seeds.iter().enumerate().map(each).collect();
        let parts: Vec<Vec<&[f32]>> =
            values.iter().map(|part| part.iter().map(|partial| &partial[..]).collect()).collect();
        for backend in backends() {
            merges_have_the_bits_of_merge(backend, heads, &parts)?;
        }
    }

    #[test]
    fn a_batch_is_its_parts(batch in batch()) {
        on_every_cache!(backend => { batches_are_their_parts(backend, &batch)?; });
    }
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    on_every_cache!(backend => {
        let heads = Heads { query: 2, kv: 1, dim: 16 };
        let x = |shape: &[usize]| {
            backend.cast(&backend.upload(shape, &vec![0.0; shape.iter().product()]).unwrap()).unwrap()
        };
        let kv = backend.kv_kept(&x(&[1, 3, 16]), &x(&[1, 3, 16])).unwrap();
        let attend = |rows, q: &[usize]| {
            backend.attend_many(heads, &x(q), &[Ask { kv: &kv, rows, mask: Mask::None, holes: &[] }], &mut Vec::new())
        };
        assert!(attend(0..2, &[2, 32]).is_ok());
        assert_eq!(attend(0..3, &[2, 32]).unwrap_err().code(), "kernel_shape");
        assert_eq!(attend(0..1, &[2, 16]).unwrap_err().code(), "kernel_shape");
        for (holes, mask) in [([0..1, 2..4], Mask::None), ([1..2, 0..1], Mask::None), ([0..1, 1..2], Mask::Causal)] {
            let refused = [Ask { kv: &kv, rows: 0..1, mask, holes: &holes }];
            let refused = backend.attend_many(heads, &x(&[2, 32]), &refused, &mut Vec::new());
            assert_eq!(refused.unwrap_err().code(), "kernel_shape");
        }
        let attend = |groups: &[usize]| {
            let asks = [0, 1].map(|row| Ask { kv: &kv, rows: row..row + 1, mask: Mask::None, holes: &[] });
            backend.attend_rows(heads, &x(&[2, 32]), (&asks, groups))
        };
        assert!(attend(&[2]).is_ok());
        for groups in [&[1][..], &[3], &[2, 0], &[1, 2]] {
            assert_eq!(attend(groups).unwrap_err().code(), "kernel_shape");
        }
        let tree = |levels: &[&[usize]], tops: &[&[usize]]| {
            let asks = [0, 1].map(|row| Ask { kv: &kv, rows: row..row + 1, mask: Mask::None, holes: &[] });
            let levels = levels.iter().map(|slots| vec![slots.to_vec()]).collect();
            let merging = Merging { levels, tops: tops.iter().map(|slots| slots.to_vec()).collect() };
            backend.attend_tree(heads, &x(&[2, 32]), (&asks, &[]), &merging)
        };
        assert!(tree(&[&[0, 1]], &[&[2], &[0, 1]]).is_ok());
        for tops in [&[][..], &[&[][..]], &[&[2]]] {
            assert_eq!(tree(&[], tops).err().unwrap().code(), "kernel_shape");
        }
        for level in [&[2][..], &[]] {
            assert_eq!(tree(&[level], &[&[0]]).err().unwrap().code(), "kernel_shape");
        }
        let row = vec![0.0; heads.packed_row()];
        assert!(backend.merge_packed(heads, &[vec![&row[..], &row]]).is_ok());
        for parts in [vec![], vec![vec![]], vec![vec![&row[1..]]], vec![vec![&row[..], &[]]]] {
            assert_eq!(backend.merge_packed(heads, &parts).err().unwrap().code(), "kernel_shape");
        }
    });
}
