//! Faults that fetches meet.

use crate::*;

#[test]
fn one_slow_answer_is_not_waited_for_unless_the_settings_say_so() {
    const SLOW_MS: u64 = 800;
    for enabled in [true, false] {
        let flag = enabled.to_string();
        let extra = [("chunk.size.bytes", "65536"), ("fetch.hedging.enabled", flag.as_str())];
        let bench = Bench::with(&extra, |_| {});
        let (long, short) = (bench.segment(1, 8 * MIB), bench.segment(2, 1000));
        copy(&bench.engine, &long).unwrap();
        copy(&bench.engine, &short).unwrap();
        // From the last chunk to the first, so that each is a GET: enough to know what they usually take.
        for chunk in (0..128).rev() {
            read_segment(&bench.engine, &long, chunk * 65536..chunk * 65536 + 1).unwrap();
        }
        bench.fault(FaultRule::new(Operation::GetObject, HttpFault::SlowReply { ms: SLOW_MS }).times(1));
        let begin = now();
        assert_eq!(
            read_segment(&bench.engine, &short, 0..u64::MAX).unwrap(),
            short.log_bytes().unwrap()
        );
        let waited = begin.elapsed() >= Duration::from_millis(SLOW_MS);
        let won = bench.metric("store", "hedges_won_total");
        assert_eq!((won > 0, waited), (enabled, !enabled), "{won} won");
        assert!(bench.metric("store", "hedged_requests_total") >= won);
        assert_idle(&bench.engine);
    }
}
