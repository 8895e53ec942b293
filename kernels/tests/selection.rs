//! Attention over selected keys, and the selections, of every backend against the slow reference. The checks are generic over
//! the backend; a new one joins `backends`.

mod common;

use std::collections::BTreeSet;
use std::iter;

use asterism_kernels::prelude::*;
use asterism_kernels::reference::{self, ReferenceSequence};
use asterism_kernels::{FlexRule, Heads, KeySets, Mask, Partial, Selection, Selector, StripeRule, VerticalSlashRule};
use common::{assert_close, numbers, on_every_thread_count, rounded};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

type Chosen<'a, B> = (Partial<<B as TensorOps>::Tensor>, Selection<'a>);

/// One causal sequence.
#[derive(Clone, Debug)]
struct Case {
    heads: Heads,
    tokens: usize,
    seed: u64,
    /// Factor on the queries.
    sharpness: f32,
}

/// A case on a backend: the operands as it stores them, and as the reference takes them.
struct Operands<B: Backend> {
    case: Case,
    values: [Vec<f32>; 3],
    q: B::Tensor,
    k: B::Tensor,
    kv: B::Kv,
}

impl Case {
    fn on<B: Backend>(&self, backend: &B) -> Operands<B> {
        let Heads { query, kv, dim } = self.heads;
        let draw = |heads: usize, salt: u64, scale: f32| {
            let values = numbers(heads * self.tokens * dim, self.seed.wrapping_add(salt));
            rounded(backend.dtype(), values.into_iter().map(|x| x * scale).collect())
        };
        let values = [draw(query, 0, self.sharpness), draw(kv, 1, 1.0), draw(kv, 2, 1.0)];
        let [q, k, v] = [(query, &values[0]), (kv, &values[1]), (kv, &values[2])]
            .map(|(heads, values)| backend.cast(&backend.upload(&[heads, self.tokens, dim], values).unwrap()).unwrap());
        let kv = backend.kv(&k, &v).unwrap();
        Operands { case: self.clone(), values, q, k, kv }
    }
}

impl<B: Backend> Operands<B> {
    fn sequence(&self) -> ReferenceSequence<'_> {
        let [q, k, v] = &self.values;
        ReferenceSequence { q, k, v, heads: self.case.heads, tokens: self.case.tokens }
    }

    fn check(
        &self,
        backend: &B,
        got: &Partial<B::Tensor>,
        (output, lse): (Vec<f32>, Vec<f32>),
    ) -> Result<(), TestCaseError> {
        let Heads { query, dim, .. } = self.case.heads;
        prop_assert_eq!(backend.shape(&got.output), [query, self.case.tokens, dim]);
        prop_assert_eq!(backend.shape(&got.lse), [query, self.case.tokens]);
        assert_close(backend.dtype(), &backend.download(&got.output).unwrap(), &output)?;
        assert_close(backend.dtype(), &backend.download(&got.lse).unwrap(), &lse)
    }

    /// The lists of a selection, which has their pairs, and whose attention is attention over them.
    fn lists(&self, backend: &B, (got, keys): &Chosen<'_, B>) -> Result<KeySets, TestCaseError> {
        let lists = keys.lists().unwrap();
        prop_assert_eq!(keys.pairs(), lists.pairs(self.case.tokens));
        self.check(backend, got, reference::selected_attention(self.sequence(), &lists))?;
        Ok(lists)
    }

    fn agree_densely(&self, backend: &B, got: &Partial<B::Tensor>) -> Result<(), TestCaseError> {
        let dense = backend.attention(&self.q, &self.kv, Mask::Causal).unwrap();
        assert_close(backend.dtype(), &download(backend, got), &download(backend, &dense))
    }
}

fn download<B: Backend>(backend: &B, partial: &Partial<B::Tensor>) -> Vec<f32> {
    [&partial.output, &partial.lse].into_iter().flat_map(|x| backend.download(x).unwrap()).collect()
}

fn case(tokens: impl Strategy<Value = usize>) -> impl Strategy<Value = Case> {
    let heads = (1usize..=3, 1usize..=2, prop::sample::select(vec![16usize, 32, 64, 128]));
    let rest = (any::<u64>(), prop::sample::select(vec![0.3f32, 3.0, 10.0]));
    (heads, tokens, rest).prop_map(|((group, kv, dim), tokens, (seed, sharpness))| {
        let heads = Heads { query: group * kv, kv, dim };
        Case { heads, tokens, seed, sharpness }
    })
}

/// Lists of every kind: none, all, single keys, long ranges, keys that come after the rows.
fn key_sets(heads: usize, tokens: usize, rows: usize, seed: u64) -> KeySets {
    let lists: Vec<Vec<u32>> = (0..heads * tokens.div_ceil(rows))
        .map(|list| {
            let draws = numbers(tokens, seed.wrapping_add(list as u64 * 977));
            let keep = |key: usize| match draws[0].abs() {
                x if x < 0.1 => false,
                x if x < 0.2 => true,
                x if x < 0.6 => draws[key] > 0.8,
                _ => draws[key / 40] > 0.0,
            };
            (0..tokens).filter(|key| keep(*key)).map(|key| key as u32).collect()
        })
        .collect();
    KeySets::from_keys(heads, rows, &lists).unwrap()
}

fn selected_agrees<B: Backend>(backend: &B, case: &Case, rows: usize) -> Result<(), TestCaseError> {
    let operands = case.on(backend);
    let keys = key_sets(case.heads.query, case.tokens, rows, case.seed);
    let got = backend.attention_selected(&operands.q, &operands.kv, &keys).unwrap();
    operands.check(backend, &got, reference::selected_attention(operands.sequence(), &keys))
}

fn stripes_agree<B: Backend>(backend: &B, case: &Case, rule: StripeRule) -> Result<(), TestCaseError> {
    let operands = case.on(backend);
    let (got, keys) = backend.attention_by(&operands.q, &operands.kv, Selector::Stripes(rule)).unwrap();
    prop_assert_eq!(keys.pairs(), keys.lists().unwrap().pairs(case.tokens));
    let keys = keys.lists().unwrap();
    let (span, groups) = (rule.step * rule.block_q, keys.groups());
    prop_assert_eq!((keys.rows(), groups), (span, case.tokens.div_ceil(span)));
    let margins = reference::stripe_margins(operands.sequence(), rule);
    let mut lists = Vec::new();
    for (list, margins) in margins.chunks_exact(case.tokens).enumerate() {
        let (head, window) = (list / groups, list % groups * span);
        let mut seen = vec![false; case.tokens];
        keys.keys(head, list % groups).for_each(|key| seen[key as usize] = true);
        for (key, margin) in margins.iter().enumerate() {
            let candidate = (rule.block_kv..window).contains(&key);
            prop_assert!(candidate || !seen[key], "key {} of head {} is no candidate at {}", key, head, window);
            let decided = (margin - rule.theta).abs() > 1e-3;
            let selected = candidate && *margin <= rule.theta;
            prop_assert!(!decided || seen[key] == selected, "key {} of head {} at {}: {}", key, head, window, margin);
        }
        let anchor = |key: usize| key < rule.block_kv || (window..window + span).contains(&key);
        lists.push((0..case.tokens).filter(|key| seen[*key] || anchor(*key)).map(|key| key as u32).collect::<Vec<_>>());
    }
    let attended = KeySets::from_keys(case.heads.query, span, &lists).unwrap();
    let pairs = rule.anchor_pairs(case.tokens) * case.heads.query as u64 + keys.pairs(case.tokens);
    prop_assert_eq!(attended.pairs(case.tokens), pairs);
    operands.check(backend, &got, reference::selected_attention(operands.sequence(), &attended))?;
    if rule.theta == f32::INFINITY {
        operands.agree_densely(backend, &got)?;
        prop_assert_eq!(pairs, dense_pairs(case));
    }
    Ok(())
}

fn dense_pairs(case: &Case) -> u64 {
    (case.heads.query * case.tokens * (case.tokens + 1) / 2) as u64
}

fn vertical_slash_agrees<B: Backend>(backend: &B, case: &Case, rule: VerticalSlashRule) -> Result<(), TestCaseError> {
    let operands = case.on(backend);
    let chosen = backend.attention_by(&operands.q, &operands.kv, Selector::VerticalSlash(rule)).unwrap();
    let keys = operands.lists(backend, &chosen)?;
    let expected = reference::vertical_slash(operands.sequence(), rule);
    // Where sums lie closer, their order is rounding's.
    if expected.gap > 1e-4 {
        prop_assert_eq!(&keys, &expected.keys);
    }
    if rule.vertical.max(rule.slash) >= case.tokens {
        operands.agree_densely(backend, &chosen.0)?;
        prop_assert_eq!(keys.pairs(case.tokens), dense_pairs(case));
    }
    Ok(())
}

fn flex_agrees<B: Backend>(backend: &B, case: &Case, rule: FlexRule) -> Result<(), TestCaseError> {
    let operands = case.on(backend);
    let chosen = backend.attention_by(&operands.q, &operands.kv, Selector::Flex(rule)).unwrap();
    let keys = operands.lists(backend, &chosen)?;
    let expected = reference::flex_prefill(operands.sequence(), rule);
    if expected.gap > 1e-4 {
        prop_assert_eq!(&keys, &expected.keys);
    }
    if rule.gamma >= 1.0 || case.tokens <= rule.min_budget.max(256) {
        operands.agree_densely(backend, &chosen.0)?;
        prop_assert_eq!(keys.pairs(case.tokens), dense_pairs(case));
    }
    Ok(())
}

fn key_scores_agree<B: Backend>(backend: &B, case: &Case, rows: usize) -> Result<(), TestCaseError> {
    let operands = case.on(backend);
    let rows = rows.min(case.tokens);
    let q = backend.narrow(&operands.q, 1, case.tokens - rows, case.tokens).unwrap();
    let got = backend.key_scores(&q, &operands.k).unwrap();
    let expected = reference::key_scores(&backend.download(&q).unwrap(), &operands.values[1], case.heads);
    assert_close(asterism_kernels::DType::F32, &got, &expected)
}

fn theta() -> impl Strategy<Value = f32> {
    prop_oneof![-1f32..12.0, prop::sample::select(vec![f32::INFINITY, f32::NEG_INFINITY, 1000.0, -1000.0])]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn selected_attention_agrees(
        case in case(prop_oneof![Just(1usize), 2usize..40, 100usize..420]),
        rows in prop_oneof![1usize..20, 60usize..130, Just(1000)],
    ) {
        on_every_backend!(backend => {
            selected_agrees(backend, &case, rows)?;
            key_scores_agree(backend, &case, rows)?;
        });
    }

    #[test]
    fn stripe_attention_agrees(
        case in case(prop_oneof![1usize..40, 100usize..420]),
        (theta, step, block_q, block_kv) in (theta(), 1usize..5, 1usize..40, 0usize..50),
    ) {
        on_every_backend!(backend => {
            stripes_agree(backend, &case, StripeRule { theta, step, block_q, block_kv })?;
        });
    }

    #[test]
    fn vertical_slash_selects_what_the_reference_does(
        case in case(prop_oneof![1usize..80, 150usize..420]),
        (vertical, slash) in (prop_oneof![0usize..200, Just(420)], prop_oneof![0usize..300, Just(420)]),
    ) {
        on_every_backend!(backend => {
            vertical_slash_agrees(backend, &case, VerticalSlashRule { vertical, slash })?;
        });
    }

    #[test]
    fn flex_prefill_selects_what_the_reference_does(
        case in case(prop_oneof![1usize..20, 250usize..900]),
        gamma in prop_oneof![0.2f32..1.0, Just(1.0)],
        tau in prop::sample::select(vec![0.0f32, 0.1, 0.3, 2.0]),
        min_budget in prop::sample::select(vec![0usize, 1, 200, 400]),
    ) {
        on_every_backend!(backend => {
            flex_agrees(backend, &case, FlexRule { gamma, tau, min_budget })?;
        });
    }

    #[test]
    fn threads_change_no_bit(case in case(300usize..700), rows in 1usize..300) {
        let keys = key_sets(case.heads.query, case.tokens, rows, case.seed);
        let rule = StripeRule { theta: 4.0, step: 2, block_q: 30, block_kv: 20 };
        on_every_thread_count(|backend| {
            let operands = case.on(backend);
            let selected = backend.attention_selected(&operands.q, &operands.kv, &keys).unwrap();
            let (partial, stripes) = backend.attention_by(&operands.q, &operands.kv, Selector::Stripes(rule)).unwrap();
            let mut all = [download(backend, &selected), download(backend, &partial)].concat();
            let flex = FlexRule { gamma: 0.6, tau: 0.1, min_budget: 128 };
            let slash = VerticalSlashRule { vertical: 40, slash: 120 };
            let flex = backend.attention_by(&operands.q, &operands.kv, Selector::Flex(flex)).unwrap().1;
            let slash = backend.attention_by(&operands.q, &operands.kv, Selector::VerticalSlash(slash)).unwrap().1;
            all.extend([stripes, flex, slash].iter().map(|keys| keys.pairs() as f32));
            all
        })?;
    }
}

#[test]
fn long_lists_pass_over_several_tasks_and_blocks() {
    on_every_backend!(backend => {
        let of = |dim: usize| Case { heads: Heads { query: 2, kv: 1, dim }, tokens: 1800, seed: 5, sharpness: 3.0 };
        for dim in [64, 128] {
            selected_agrees(backend, &of(dim), 900).unwrap();
        }
        let case = of(32);
        selected_agrees(backend, &case, 900).unwrap();
        for theta in [3.0, f32::INFINITY] {
            stripes_agree(backend, &case, StripeRule { theta, step: 4, block_q: 128, block_kv: 128 }).unwrap();
        }
    });
}

/// Longer than what a block of threads sees at a time, in tokens and in pairs of blocks.
const LONG: usize = 6000;

#[test]
fn flex_prefill_selects_of_a_long_sequence_what_the_reference_does() {
    on_every_backend!(backend => {
        let case = Case { heads: Heads { query: 2, kv: 1, dim: 16 }, tokens: LONG, seed: 11, sharpness: 3.0 };
        let (operands, groups) = (case.on(backend), LONG.div_ceil(128));
        for (tau, min_budget) in [(0.0, 0), (2.0, 0), (2.0, 700)] {
            let rule = FlexRule { gamma: 0.6, tau, min_budget };
            let (_, chosen) = backend.attention_by(&operands.q, &operands.kv, Selector::Flex(rule)).unwrap();
            let (keys, expected) = (chosen.lists().unwrap(), reference::flex_prefill(operands.sequence(), rule).keys);
            let (mut kept, mut differ) = (0, 0);
            for (head, group) in (0..2).flat_map(|head| (0..groups).map(move |group| (head, group))) {
                let [own, other] = [&keys, &expected].map(|keys| keys.keys(head, group).collect::<BTreeSet<_>>());
                kept += other.len();
                differ += own.symmetric_difference(&other).count();
            }
            // Rounding may turn what lies closest to the limit: a line of blocks of either head.
            assert!(differ <= 2 * LONG && 10 * kept < 9 * LONG * (groups + 1), "{rule:?}: {differ} of {kept} differ");
        }
    });
}

#[test]
fn of_equal_blocks_flex_prefill_keeps_the_first() {
    on_every_backend!(backend => {
        let case = Case { heads: Heads { query: 2, kv: 1, dim: 16 }, tokens: LONG, seed: 3, sharpness: 0.0 };
        let operands = case.on(backend);
        let rule = FlexRule { gamma: 0.7, tau: 2.0, min_budget: 0 };
        let (_, keys) = backend.attention_by(&operands.q, &operands.kv, Selector::Flex(rule)).unwrap();
        // Queries of zeros attend to all alike: each row of blocks has mass 1, and the first have the largest. 0.7 of 47 is 32 rows
        // and 29 blocks of the next, whose weights are 1 / 33; then only the first column and the diagonal are left.
        let rows = LONG.div_ceil(128) as u32;
        let of_row = |row: u32| match row {
            0..32 => iter::once(0..row + 1).collect(),
            32 => vec![0..29, 32..33],
            _ => vec![0..1, row..row + 1],
        };
        let key = |block: u32| (128 * block).min(LONG as u32);
        let lists: Vec<Vec<_>> = (0..2 * rows)
            .map(|list| of_row(list % rows).into_iter().map(|blocks| key(blocks.start)..key(blocks.end)).collect())
            .collect();
        assert_eq!(keys.lists().unwrap(), KeySets::new(2, 128, &lists).unwrap());
    });
}

#[test]
fn a_sequence_without_tokens_selects_nothing() {
    on_every_backend!(backend => {
        let case = Case { heads: Heads { query: 2, kv: 1, dim: 16 }, tokens: 0, seed: 0, sharpness: 1.0 };
        let Operands { q, kv, .. } = &case.on(backend);
        let rule = StripeRule { theta: 12.0, step: 16, block_q: 128, block_kv: 128 };
        let (partial, stripes) = backend.attention_by(q, kv, Selector::Stripes(rule)).unwrap();
        let groups = |keys: &Selection<'_>| keys.lists().unwrap().groups();
        assert_eq!((backend.shape(&partial.output), groups(&stripes)), (vec![2, 0, 16], 0));
        let (partial, slash) = backend.attention_by(q, kv, Selector::VerticalSlash(VerticalSlashRule { vertical: 9, slash: 9 })).unwrap();
        assert_eq!((backend.shape(&partial.output), groups(&slash)), (vec![2, 0, 16], 0));
        let flex = FlexRule { gamma: 0.9, tau: 0.1, min_budget: 9 };
        let (partial, flex) = backend.attention_by(q, kv, Selector::Flex(flex)).unwrap();
        assert_eq!((backend.shape(&partial.output), groups(&flex)), (vec![2, 0, 16], 0));
    });
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    on_every_backend!(backend => {
        let case = |tokens: usize| Case { heads: Heads { query: 2, kv: 1, dim: 16 }, tokens, seed: 0, sharpness: 1.0 };
        let (short, long) = (case(9).on(backend), case(10).on(backend));
        let rule = StripeRule { theta: 12.0, step: 2, block_q: 2, block_kv: 2 };
        assert!(backend.attention_by(&short.q, &long.kv, Selector::Stripes(rule)).is_err());
        for wrong in
            [StripeRule { step: 0, ..rule }, StripeRule { block_q: 0, ..rule }, StripeRule { theta: f32::NAN, ..rule }]
        {
            assert_eq!(backend.attention_by(&long.q, &long.kv, Selector::Stripes(wrong)).err().unwrap().code(), "kernel_shape");
            assert_eq!(wrong.anchor_pairs(10), 0);
        }
        for (heads, rows, list) in [(1, 10, vec![0]), (2, 5, vec![0]), (2, 10, vec![10])] {
            let keys = KeySets::from_keys(heads, rows, &vec![list; heads]).unwrap();
            assert!(backend.attention_selected(&long.q, &long.kv, &keys).is_err());
        }
        assert!(backend.key_scores(&backend.narrow(&long.q, 1, 0, 0).unwrap(), &long.k).is_err());
    });
}
