//! Plans of contexts that come again with more behind them: their full blocks depend on nothing that is asked or comes later, so that
//! what a longer context has in common with such a one, its plan has too. A pure function of the request: what any host holds is
//! not known here, and changes nothing.

use super::{ChainConfig, MethodConfig, PulsarConfig, StarConfig};
use crate::{Choice, Method, Plan, PlanError, PlanRequest};

impl MethodConfig {
    /// The plan of a context that is likely to come again: where dense attention is asked for, or nothing is, a chain, which is
    /// exact; of `pulsar` the form of its sessions; of `star` with blocks of a given size, blocks that are encoded alone. All other
    /// methods have no such form, and their own plan is the same context's again at most.
    ///
    /// # Errors
    /// As [`Method::plan`].
    pub fn reusable(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let session = PlanRequest { query: &[], ..*request };
        let plan = match self {
            Self::Auto(_) | Self::Dense(_) => {
                let tokens = request.context.len();
                let reason = format!(
                    "{tokens} context tokens that may come again with more: exact, in blocks that are gone on with"
                );
                because(Self::Chain(ChainConfig::default()).plan(request)?, reason)
            }
            Self::Pulsar(config) if config.grows(&[]) => {
                let reason = "a context that may come again with more: in the form of a session".to_owned();
                because(Self::Pulsar(PulsarConfig::clone(config)).plan(&session)?, reason)
            }
            Self::Star(config) if config.block_tokens.is_some() && !config.balanced => {
                Self::Star(StarConfig { shared_prefix: Some(false), ..config.clone() }).plan(request)?
            }
            method => method.plan(request)?,
        };
        Ok(super::rotated(plan, request))
    }

    /// The plan of a context that may come again or not: the method's own, but a chain where that is dense attention, which is as
    /// exact and can be gone on with.
    ///
    /// # Errors
    /// As [`Method::plan`].
    pub fn reusable_where_exact(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let plan = self.plan(request)?;
        if plan.method.name != "dense" || plan.context_tokens <= crate::APPENDED_TOKENS {
            return Ok(plan);
        }
        let asked = || "dense attention, in blocks that are gone on with".to_owned();
        let chain = Self::Chain(ChainConfig::default()).plan(request)?;
        Ok(because(chain, plan.method.reason.unwrap_or_else(asked)))
    }
}

fn because(plan: Plan, reason: String) -> Plan {
    Plan { method: Choice { reason: Some(reason), ..plan.method }, ..plan }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ModelShape, Shard};

    fn ids(tokens: usize) -> Vec<u32> {
        (0..tokens as u32).map(|at| at * 37 % 501).collect()
    }

    fn request<'a>(context: &'a [u32], query: &'a [u32], hosts: usize) -> PlanRequest<'a> {
        PlanRequest { context, query, hosts, one_device: true, shape: &ModelShape::TINY, speeds: None }
    }

    proptest! {
        /// A longer context has all full blocks of a shorter one, whatever is asked about either.
        #[test]
        fn what_comes_again_with_more_has_the_same_blocks(
            (tokens, more) in (1_usize..5000, 0_usize..5000),
            hosts in 1_usize..5,
            method in prop::sample::select(vec!["auto", "dense", "chain", "pulsar"]),
        ) {
            let method: MethodConfig = method.parse().unwrap();
            let all = ids(tokens + more);
            let [short, long] = [(tokens, 9), (all.len(), 10)]
                .map(|(end, query)| method.reusable(&request(&all[..end], &[query], hosts)).unwrap());
            prop_assert_eq!((short.check(tokens), long.check(all.len())), (Ok(()), Ok(())));
            let anywhere = |shard: &Shard| Shard { host: 0, ..shard.clone() };
            let both = short.shards.iter().map(anywhere).zip(long.shards.iter().map(anywhere));
            prop_assert!(both.take_while(|(one, other)| one == other).count() >= tokens / crate::APPENDED_TOKENS);
        }
    }

    #[test]
    fn the_plan_says_its_form() {
        let all = ids(5000);
        let asked = request(&all, &[9], 4);
        let of = |method: &str| {
            let plan = method.parse::<MethodConfig>().unwrap().reusable(&asked).unwrap();
            (plan.method.name.clone(), plan.shards.len(), plan.method.reason.unwrap_or_default())
        };
        let exact = "5000 context tokens that may come again with more: exact, in blocks that are gone on with";
        assert_eq!(of("auto"), ("chain".into(), 5, exact.into()));
        assert_eq!(of("dense"), of("auto"));
        assert_eq!(of("pulsar").2, "a context that may come again with more: in the form of a session");
        assert_eq!((of("ring").0, of("ring").2), ("ring".into(), String::new()));
        let star: MethodConfig = serde_json::from_str(r#"{"star": {"block_tokens": 512}}"#).unwrap();
        assert_eq!(star.reusable(&asked).unwrap().exchange, crate::Exchange::None);
    }

    #[test]
    fn what_is_dense_anyway_is_a_chain_and_a_short_context_is_one_block_of_it() {
        let all = ids(6000);
        let of = |method: &str, tokens: usize| {
            let method: MethodConfig = method.parse().unwrap();
            method.reusable_where_exact(&request(&all[..tokens], &[9], 4)).unwrap().method.name
        };
        assert_eq!([of("dense", 1000), of("dense", 3000), of("auto", 1500)], ["dense", "chain", "chain"]);
        assert_eq!([of("auto", 6000), of("ring", 3000)], ["pulsar", "ring"]);
    }
}
