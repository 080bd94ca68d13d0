//! Erases and I/O time of cache policies over three counting models of flash translation layers.
//!
//! `compare [--block PAGES] [--cache PAGES,…] [--logs N] [--no-flush] TRACE… -- POLICY…`
//!
//! A trace is a recorded `*.csv.zst` (`time_s,op,offset_bytes,length_bytes,…`) or one of the generated ones:
//! `gen:random`, `gen:sequential`, `gen:mixed` (60 % random), `gen:skewed`, `gen:p2p`.

#[path = "../../../../tests/suite/cache/ftl.rs"]
mod ftl;

use bimetal::cache::{Below, Config, build};
use bimetal::time::Time;
use bimetal::units::Lpn;
use ftl::{Bast, Fast, Flash, Layer, PageMap};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[derive(Clone, Copy)]
enum Op {
    Read(u64, u32),
    Write(u64, u32),
    Flush,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}

fn recorded(path: &str) -> Vec<Op> {
    let mut child = Command::new("zstd").args(["-dcq", path]).stdout(Stdio::piped()).spawn().expect("zstd");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut ops = Vec::new();
    for line in lines.map_while(|line| line.ok()) {
        let fields: Vec<&str> = line.split(',').collect();
        if line.starts_with('#') || fields.len() < 4 {
            continue;
        }
        let (Ok(offset), Ok(len)) = (fields[2].parse::<u64>(), fields[3].parse::<u64>()) else { continue };
        let first = offset / 4096;
        let count = ((offset + len).div_ceil(4096) - first) as u32;
        match fields[1] {
            "R" if len > 0 => ops.push(Op::Read(first, count)),
            "W" if len > 0 => ops.push(Op::Write(first, count)),
            "F" => ops.push(Op::Flush),
            _ => {}
        }
    }
    child.wait().expect("zstd ends");
    ops
}

fn generated(name: &str) -> Vec<Op> {
    let mut random = Random(7);
    let pages = 65_536u64;
    let count = 262_144;
    let mut next = 0;
    match name {
        "random" => (0..count).map(|_| Op::Write(random.next() % pages, 1)).collect(),
        "sequential" => (0..count).map(|at| Op::Write(at % pages, 1)).collect(),
        "mixed" => (0..count)
            .map(|_| {
                next = if random.next() % 100 < 60 { random.next() % pages } else { (next + 1) % pages };
                if random.next() % 100 < 67 { Op::Write(next, 1) } else { Op::Read(next, 1) }
            })
            .collect(),
        "skewed" => (0..count)
            .map(|_| {
                let page = if random.next() % 100 < 80 { random.next() % (pages / 8) * 8 } else { random.next() % pages };
                if random.next() % 100 < 60 { Op::Write(page, 1) } else { Op::Read(page, 1) }
            })
            .collect(),
        "p2p" => {
            let piece = 128u64;
            let mut open: Vec<(u64, u64)> = Vec::new();
            let mut left: Vec<u64> = (0..pages / piece).collect();
            let mut ops = Vec::new();
            while ops.len() < count as usize {
                while open.len() < 30 && !left.is_empty() {
                    let at = random.next() as usize % left.len();
                    open.push((left.swap_remove(at), 0));
                }
                if open.is_empty() {
                    left = (0..pages / piece).collect();
                    continue;
                }
                let at = random.next() as usize % open.len();
                let (number, done) = &mut open[at];
                ops.push(Op::Write(*number * piece + *done, 4));
                *done += 4;
                if *done == piece {
                    ops.push(Op::Read(*number * piece, piece as u32));
                    open.swap_remove(at);
                }
            }
            ops
        }
        _ => panic!("no generated trace {name}"),
    }
}

fn run(policy: &str, config: &Config, ops: &[Op], flushes: bool, below: &mut dyn Below) -> String {
    let mut cache = build(policy, config).unwrap_or_else(|error| panic!("{error}"));
    let mut at = Time::ZERO;
    for op in ops {
        at = match *op {
            Op::Read(first, count) => cache.read(at, Lpn(first), count, below),
            Op::Write(first, count) => cache.write(at, Lpn(first), count, below),
            Op::Flush if flushes => cache.flush(at, below),
            Op::Flush => Ok(at),
        }
        .expect("no errors");
    }
    let s = *cache.stats();
    cache.sync(at, below).expect("no errors");
    format!("{:>6.4} {:>9} {:>9} {:>8} {:>9}", s.hit_ratio(), s.pages_read, s.pages_written, s.write_commands, s.pages_padded)
}

fn main() {
    let (mut block, mut sizes, mut logs, mut flushes) = (128u32, vec![4096u32], 64usize, true);
    let (mut traces, mut policies) = (Vec::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--block" => block = args.next().unwrap().parse().unwrap(),
            "--cache" => sizes = args.next().unwrap().split(',').map(|n| n.parse().unwrap()).collect(),
            "--logs" => logs = args.next().unwrap().parse().unwrap(),
            "--no-flush" => flushes = false,
            "--" => policies = args.by_ref().collect(),
            _ => traces.push(arg),
        }
    }
    for trace in traces {
        let ops = match trace.strip_prefix("gen:") {
            Some(name) => generated(name),
            None => recorded(&trace),
        };
        let end = ops.iter().map(|op| match *op {
            Op::Read(first, count) | Op::Write(first, count) => first + u64::from(count),
            Op::Flush => 0,
        });
        let blocks = end.max().unwrap_or(1).div_ceil(u64::from(block));
        for &size in &sizes {
            let config = Config::new(size).block_pages(block).space(blocks * u64::from(block));
            println!("# {trace}: {} requests, {blocks} blocks, cache {size} pages, {logs} logs", ops.len());
            println!(
                "{:<34} {:>6} {:>9} {:>9} {:>8} {:>9} | BAST erases/ms, s/p/f | FAST | page",
                "policy", "hit", "read", "written", "commands", "padded"
            );
            for policy in &policies {
                let b = u64::from(block);
                let mut bast = Flash::new(Bast::new(b, logs));
                let text = run(policy, &config, &ops, flushes, &mut bast);
                let mut fast = Flash::new(Fast::new(b, logs));
                run(policy, &config, &ops, flushes, &mut fast);
                let mut map = Flash::new(PageMap::new(b, blocks, (blocks / 14).max(4)));
                run(policy, &config, &ops, flushes, &mut map);
                print!("{policy:<34} {text}");
                print_device(&bast);
                print_device(&fast);
                print_device(&map);
                println!();
            }
        }
    }
}

fn print_device<L: Layer>(flash: &Flash<L>) {
    let d = flash.done;
    print!(
        " | {:>7} {:>8} {:>6}/{}/{}",
        d.erases,
        d.busy_us() / 1000,
        d.switch_merges,
        d.partial_merges,
        d.full_merges
    );
}
