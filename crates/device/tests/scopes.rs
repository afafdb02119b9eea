//! What holds on every backend around ops: graphs keep the host out, and a dry run counts what the real one takes.

mod common;

use common::backends::{SIZES, cpu, isas};
use common::random::Random;
use common::steps::{Step, spans};
use common::world::{Grade, World, dense};
use device::RowClass::{Few, Many};
use device::{
    Act, ActFn, Device, Error, GdnShape, Glu, GraphKey, KeyHeadRule, Meter, Op, Pairing, RecView, Reference, Region,
    Rope, Router, Routing, RowClass, Rows, StreamView, View,
};
use memory::{Class, KvFormat, Ledger, Tier};

const HEADS: u32 = 6;
const KV: u32 = 2;
const D: u32 = 32;
const H: u32 = HEADS * D;
const EXPERTS: u32 = 8;
const GDN: GdnShape = GdnShape { n_k: 1, n_v: 2, d_k: 32, d_v: 32, rule: KeyHeadRule::Div };

/// The operands of a step that outlive it.
struct Layer {
    rows: Rows,
    x: View,
    st: StreamView,
    rec: RecView,
    w: device::Buf,
    freqs: device::Buf,
    taps: device::Buf,
    gates: device::Buf,
}

fn layer(w: &mut World, class: RowClass, n: u32, start: u32) -> Layer {
    let mut r = Random::new(n as u64);
    let mut step = Step::new(class, &spans(&[(start, n), (0, 1)]), 2 + (start + n) / 256, &mut r);
    step.slots.from = vec![-1; 2];
    step.slots.to = (0..n as i32 + 1).collect();
    let slots = n + 1;
    let page_bytes = (2 * KV * 256 * D * 4).next_multiple_of(4096) as u64;
    let buf = w.bytes("pages", Grade::Exact, &vec![0; (step.page_count as u64 * page_bytes) as usize]);
    let state_elems = GDN.n_v * GDN.d_k * GDN.d_v;
    let conv_elems = 3 * GDN.channels();
    let zeros = |elems: u32| vec![0.0; (slots * elems) as usize];
    Layer {
        rows: step.rows(w),
        x: w.input("x", dense(n + 1, 1, H), &r.floats(((n + 1) * H) as usize, 1.0)),
        st: StreamView {
            buf,
            page_bytes,
            fmt: KvFormat::F32,
            heads: KV,
            d: D,
            ring: 0,
            layer: 0,
            own: None,
            sink: None,
        },
        rec: RecView {
            state: w.vector("states", &zeros(state_elems)),
            state_elems,
            conv: w.vector("windows", &zeros(conv_elems)),
            conv_elems,
            slots,
        },
        w: w.vector("w", &r.floats(H as usize, 1.0)),
        freqs: w.vector("freqs", &r.floats(D as usize / 2, 1.0)),
        taps: w.vector("taps", &r.floats(4 * GDN.channels() as usize, 1.0)),
        gates: w.vector("gates", &[-0.5; 2]),
    }
}

/// One layer of each kind, made of every op that needs no weight matrix.
fn step(d: &mut dyn Device, l: &Layer) -> Result<(), Error> {
    d.scope(Region::Step, |d| {
        let n = l.rows.n;
        let mut take = |cols| d.take(Region::Step, Act::F32, n, cols);
        let (h, q, k, v, y) = (take(H)?, take(H)?, take(KV * D)?, take(KV * D)?, take(H)?);
        let (q, k, v, y) = (q.heads(HEADS), k.heads(KV), v.heads(KV), y.heads(HEADS));
        d.run(Op::RmsNorm { out: h, x: l.x, w: Some(l.w), eps: 1e-6 })?;
        d.run(Op::Glu { out: q.flat(), gate: h, up: l.x, glu: Glu::Swiglu })?;
        d.run(Op::RmsNorm { out: k, x: l.x.cols(0, KV * D).heads(KV), w: None, eps: 1e-6 })?;
        d.run(Op::RmsNorm { out: v, x: l.x.cols(7, KV * D).heads(KV), w: None, eps: 1e-6 })?;
        let rope = Rope { pairing: Pairing::Half, dims: D, inv_freq: l.freqs, factor: 1.0 };
        d.run(Op::Rope { x: q, pos: l.rows.pos, rope })?;
        d.run(Op::Append { st: l.st, rows: l.rows, k, v })?;
        d.run(Op::Attention { out: y, q, st: l.st, rows: l.rows, scale: 0.2, window: None, since: 0, sinks: None })?;
        d.run(Op::Gate { x: y, g: q, act: ActFn::Sigmoid })?;
        d.run(Op::Add { x: l.x, y: y.flat() })?;
        recurrence(d, l)?;
        experts(d, l)
    })
}

fn recurrence(d: &mut dyn Device, l: &Layer) -> Result<(), Error> {
    d.scope(Region::Step, |d| {
        let n = l.rows.n;
        let (qkv, out) = (l.x.cols(0, GDN.channels()), d.take(Region::Step, Act::F32, n, GDN.channels())?);
        let (a, y) = (l.x.cols(H - 2, 2), d.take(Region::Step, Act::F32, n, GDN.n_v * GDN.d_v)?.heads(GDN.n_v));
        let (st, rows) = (l.rec, l.rows);
        d.run(Op::ConvSilu { out, x: qkv, w: l.taps, kernel: 4, st, rows })?;
        d.run(Op::GatedDelta { out: y, qkv: out, a, b: a, decay: l.gates, dt: l.gates, g: GDN, st, rows })
    })
}

fn experts(d: &mut dyn Device, l: &Layer) -> Result<(), Error> {
    d.scope(Region::Step, |d| {
        let (n, k) = (l.rows.n, 2);
        let ids = d.take(Region::Step, Act::I32, n, k)?;
        let (w, parts) = (d.take(Region::Step, Act::F32, n, k)?, d.take(Region::Step, Act::F32, n, k * H)?);
        let router = Router { renormalise: true, ..Router::softmax(k) };
        d.run(Op::Route { out: Routing { ids, w }, logits: l.x.cols(0, EXPERTS), router })?;
        for rank in 0..k {
            let all = d.take(Region::Step, Act::I32, n, 1)?;
            d.run(Op::GatherRows { out: parts.cols(rank * H, H), x: l.x, rows: all })?;
        }
        d.run(Op::Combine { out: l.x, base: l.x, parts: parts.heads(k), w })
    })
}

fn devices() -> Vec<Box<dyn Device>> {
    let mut all: Vec<Box<dyn Device>> = vec![Box::new(Reference::new(SIZES).unwrap())];
    all.extend(isas().map(|isa| Box::new(cpu(isa, 2)) as Box<dyn Device>));
    let dry: Vec<Box<dyn Device>> =
        all.iter().map(|d| Box::new(Meter::new(d.scratch_fn(), d.caps().clone())) as Box<dyn Device>).collect();
    all.extend(dry);
    all
}

#[test]
fn a_step_runs_inside_a_graph_and_the_host_stays_out() {
    for mut dev in devices() {
        let mut w = World::new(&mut *dev);
        let l = layer(&mut w, Few, 3, 300);
        let key = GraphKey { rows: l.rows.n, seqs: l.rows.seqs, which: 0 };
        w.dev.graph(key, |d| step(d, &l)).unwrap();
        let ledger = Ledger::new(&[(Tier::Host, 1 << 20)]);
        let inside = |w: &mut World, f: &dyn Fn(&mut dyn Device) -> Result<(), Error>| {
            let refused = w.dev.graph(key, f);
            assert!(matches!(refused, Err(Error::InGraph(_))), "{}: {refused:?}", w.dev.caps().name);
            assert!(!w.dev.in_graph());
        };
        inside(&mut w, &|d| d.write_i32(l.rows.ids, &[0; 4]).map(drop));
        inside(&mut w, &|d| d.read_f32(l.x).map(drop));
        inside(&mut w, &|d| d.alloc(ledger.reserve(Tier::Host, Class::Kv, "inside", 64).unwrap()).map(drop));
        inside(&mut w, &|d| d.free(l.w).map(drop));
        inside(&mut w, &|d| d.graph(key, |_| Ok(())));
        // And outside they work again.
        w.dev.write_i32(l.rows.ids, &[0; 4]).unwrap();
    }
}

#[test]
fn a_dry_run_takes_what_a_real_one_takes() {
    for isa in isas() {
        for threads in [1, 3] {
            for (class, n, start) in [(Few, 1, 0), (Few, 5, 2000), (Few, 1, 9000), (Many, 70, 0), (Many, 200, 1500)] {
                let mut real = cpu(isa, threads);
                let mut dry = Meter::new(real.scratch_fn(), real.caps().clone());
                let [took, counted] = [&mut real as &mut dyn Device, &mut dry].map(|dev| {
                    let mut w = World::new(dev);
                    let l = layer(&mut w, class, n, start);
                    step(w.dev, &l).unwrap();
                    w.dev.arena().high_water(Region::Step)
                });
                assert_eq!(took, counted, "{} x {threads}: {class:?} {n} rows from {start}", isa.name());
            }
        }
    }
}

#[test]
fn workspace_does_not_grow_with_the_context() {
    let at = |class, start| {
        let real = cpu(isas().last().unwrap(), 2);
        let mut dry = Meter::new(real.scratch_fn(), real.caps().clone());
        let mut w = World::new(&mut dry);
        let l = layer(&mut w, class, 4, start);
        step(w.dev, &l).unwrap();
        w.dev.arena().high_water(Region::Step)
    };
    for class in [Few, Many] {
        assert_eq!(at(class, 8192), at(class, 30_000));
    }
}
