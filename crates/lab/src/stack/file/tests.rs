//! What attacks a stack file.

use super::*;

const TEXT: &str = r#"
about = "a cache over flash"

[trace]
generator = { name = "iometer", random = 60, size = "8MiB" }

[device]
profile = "slc-4k"
ftl = "page:clean=cost-benefit"

[cache]
policy = "cflru:window=0.5"
size = "16MiB"
"#;

fn told(text: &str) -> String {
    StackText::parse("my.toml", text).map(drop).unwrap_err().to_string()
}

fn set(axis: &str) -> Result<StackFile> {
    StackText::parse("my.toml", TEXT)?.with(&parse_axis(axis)?)
}

#[test]
fn it_says_what_it_says_and_has_defaults_for_the_rest() {
    let stack = StackText::parse("my.toml", TEXT).unwrap().with(&[]).unwrap();
    assert_eq!(stack.trace.generator.unwrap().to_string(), "iometer:random=60:size=8MiB");
    let cache = stack.cache.unwrap();
    assert_eq!(
        (cache.policy.get("window"), cache.size, cache.page),
        (Some("0.5"), Size(16 << 20), Size(4096))
    );
    assert_eq!((stack.seed, stack.run.queue_depth, stack.run.flush), (1, 1, true));
    assert!(StackText::parse("empty", "").is_ok());
}

#[test]
fn a_key_that_there_is_not_is_refused_with_its_line_and_the_nearest_one() {
    for (from, to, parts) in [
        ("[cache]", "[cahce]", &["my.toml:11", "'cahce'", "did you mean 'cache'"][..]),
        (
            "size = \"16MiB\"",
            "sise = \"16MiB\"",
            &["my.toml:13", "in [cache]", "'sise'", "did you mean 'size'"],
        ),
        ("[trace]", "sed = 4\n[trace]", &["my.toml:4", "did you mean 'seed'"]),
        ("policy = \"cflru:window=0.5\"", "policy = \"cflu\"", &["cache.policy", "did you mean 'cflru'"]),
        ("window=0.5", "windo=0.5", &["cache.policy", "cflru has no option 'windo'", "'window'"]),
        ("clean=cost", "clear=cost", &["device.ftl", "page has no option 'clear'", "'clean'"]),
        ("\"page:", "\"pag:", &["device.ftl", "did you mean 'page'"]),
        ("slc-4k", "slc4k", &["device.profile", "slc4k", "slc-4k"]),
        ("\"iometer\"", "\"iometr\"", &["trace.generator", "did you mean 'iometer'"]),
        ("random = 60", "randm = 60", &["trace.generator", "did you mean 'random'"]),
    ] {
        let text = TEXT.replacen(from, to, 1);
        assert_ne!(text, TEXT, "{from}");
        let why = told(&text);
        assert!(parts.iter().all(|part| why.contains(part)), "{to}: {why}");
    }
}

#[test]
fn a_value_that_does_not_fit_is_refused_with_its_line_and_the_right_form() {
    for (from, to, parts) in [
        ("size = \"16MiB\"", "size = 16", &["my.toml:13", "size = 16", "a size has a unit", "16MiB"][..]),
        ("size = \"16MiB\"", "size = \"16\"", &["my.toml:13", "a size has a unit"]),
        ("size = \"16MiB\"", "size = \"much\"", &["my.toml:13", "'much' is not a size"]),
        ("size = \"16MiB\"", "size = \"-1MiB\"", &["my.toml:13", "not a size"]),
        ("size = \"16MiB\"", "", &["'size' is missing"]),
        ("[trace]", "seed = \"one\"\n[trace]", &["my.toml:4", "expected u64"]),
        ("[trace]", "seed = -1\n[trace]", &["my.toml:4", "expected u64"]),
        ("[trace]", "[run]\npace = \"opn\"\n[trace]", &["my.toml:5", "'opn'", "did you mean 'open'"]),
        ("[trace]", "[run]\noverhead = 5\n[trace]", &["my.toml:5", "250us"]),
        ("[trace]", "[run]\nabsorb = \"4KiB\"\n[trace]", &["my.toml:5", "0-82KiB"]),
        ("[trace]", "[fs]\nkind = \"nfhybrd\"\n[trace]", &["did you mean 'nfhybrid'"]),
        (
            "[trace]",
            "[fs]\nkind = \"nfhybrid\"\noptions = { lga = \"1s\" }\n[trace]",
            &["fs", "did you mean 'lag'"],
        ),
        ("[trace]", "[trace]\nfile = \"x\"", &["file and generator exclude"]),
        ("[trace]", "[trace", &["my.toml:4"]),
        (
            "[trace]\ngenerator = { name = \"iometer\", random = 60, size = \"8MiB\" }",
            "trace = 5",
            &["my.toml:4", "expected a table"],
        ),
        ("[trace]", "seed = 9223372036854775808\n[trace]", &["my.toml:4", "less than 2^63"]),
    ] {
        let text = TEXT.replacen(from, to, 1);
        assert_ne!(text, TEXT, "{from}");
        let why = told(&text);
        assert!(parts.iter().all(|part| why.contains(part)), "{to}: {why}");
    }
    assert!(StackText::read(Path::new("/no/such.toml")).unwrap_err().to_string().contains("/no/such.toml"));
}

#[test]
fn the_place_of_an_error_is_its_line_and_the_table_it_is_in() {
    let why = told("[trac]\nfile = \"x\"\n");
    assert!(why.starts_with("my.toml:1: '[trac]': there is no key 'trac'"), "{why}");
    let why = told(&TEXT.replace("size = \"16MiB\"", ""));
    assert!(why.starts_with("my.toml:11: '[cache]': the key 'size' is missing"), "{why}");
}

#[test]
fn what_every_figure_or_none_would_be_is_not_expected() {
    let with = |keys: &str| format!("{TEXT}\n[[expect]]\nfigure = \"erases\"\n{keys}\n");
    for (keys, part) in [
        ("is = nan", "expect.is: NaN is expected of 'erases'"),
        ("is = inf\nwithin = inf", "expect.is: inf"),
        ("is = 1\nwithin = nan", "expect.within: NaN"),
        ("is = 1\nwithin = inf", "expect.within: inf"),
        ("is = 1\nwithin = -0.1", "expect.within: -0.1"),
    ] {
        let why = told(&with(keys));
        assert!(why.contains(part) && why.contains("write a number"), "{keys}: {why}");
    }
    assert!(StackText::parse("my.toml", &with("is = 0\nwithin = 0")).is_ok());
}

#[test]
fn what_excludes_each_other_and_devices_of_nothing_are_refused() {
    let why =
        told(&TEXT.replace("[device]", "[run]\nabsorb = \"0-4KiB\"\n[nvram]\ntakes = \"heat\"\n[device]"));
    assert!(why.contains("run.absorb and nvram.takes exclude each other"), "{why}");
    for half in ["device", "ssd", "disk"] {
        let why = set(&format!("{half}.size=0B")).map(drop).unwrap_err().to_string();
        assert!(why.contains(&format!("{half}.size: there is no device of 0 bytes")), "{why}");
    }
}

#[test]
fn a_file_without_an_end_is_not_read_to_it() {
    let told = |path: &Path| StackText::read(path).map(drop).unwrap_err().to_string();
    let why = told(Path::new("/dev/zero"));
    assert!(why.contains("/dev/zero is a device"), "{why}");
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(TEXT_BYTES_MAX + 1).unwrap();
    let why = told(file.path());
    assert!(why.contains("longer than 1.0 MiB"), "{why}");
}

#[test]
fn a_setting_changes_one_key_and_reaches_into_names_with_options() {
    assert_eq!(set("cache.size=4MiB").unwrap().cache.unwrap().size, Size(4 << 20));
    assert_eq!(set("cache.policy.window=1/4").unwrap().cache.unwrap().policy.get("window"), Some("1/4"));
    assert_eq!(set("trace.generator.random=5").unwrap().trace.generator.unwrap().get("random"), Some("5"));
    assert_eq!(set("device.ftl=fast:logs=8").unwrap().device.ftl.unwrap().name, "fast");
    assert_eq!(set("run.queue-depth=32").unwrap().run.queue_depth, 32);
    assert_eq!(
        set("nvram.takes=heat").unwrap().nvram.unwrap().takes,
        Some(Text(AdmissionRule::Heat(3, 1000)))
    );
    assert_eq!(set("fs.kind=nfhybrid").unwrap().fs.unwrap().kind, "nfhybrid");
}

#[test]
fn a_setting_that_cannot_be_is_refused_in_its_own_words() {
    for (axis, told) in [
        ("cache.size", "there is no '='"),
        ("=5", "no key"),
        ("cache..size=5", "no key"),
        ("cache.size=", "a value is missing"),
        ("cache.size=16MiB,,64MiB", "a value is missing"),
        ("cache.size=16MiB,16MiB", "there twice"),
        ("cache.size=64", "--set cache.size=64: a size has a unit"),
        ("cache.sise=64MiB", "did you mean 'size'"),
        ("cach.size=64MiB", "did you mean 'cache'"),
        ("seed=many", "--set seed=many: "),
        ("seed.more=1", "expected u64"),
        ("device.profile.more=1", "expected a string"),
        ("cache.policy=lri", "did you mean 'lru'"),
        ("run.flush=maybe", "expected a boolean"),
    ] {
        let why = set(axis).map(drop).unwrap_err().to_string();
        assert!(why.contains(told), "{axis}: {why}");
    }
    let lag = parse_axis("fs.options.lag=\"5s,64MiB\",\"1s\"").unwrap();
    assert_eq!(lag.iter().map(Setting::value).collect::<Vec<_>>(), ["5s,64MiB", "1s"].map(Value::from));
}

fn set_all(text: &str, axes: &[&str]) -> Result<StackFile> {
    let settings: Vec<Setting> = axes.iter().flat_map(|axis| parse_axis(axis).unwrap()).collect();
    StackText::parse("my.toml", text)?.with(&settings)
}

#[test]
fn settings_are_taken_together_and_the_one_that_is_wrong_is_told() {
    let bare = "[device]\nprofile = \"slc-4k\"\n[trace]\ngenerator = \"zipf:pages=10\"\n";
    for axes in [["cache.policy=lru", "cache.size=1MiB"], ["cache.size=1MiB", "cache.policy=lru"]] {
        assert_eq!(set_all(bare, &axes).unwrap().cache.unwrap().size, Size(1 << 20));
        let why = set_all(bare, &axes[..1]).map(drop).unwrap_err().to_string();
        assert!(why.contains(axes[0]) && why.contains("is missing"), "{why}");
    }
    let why = set_all(TEXT, &["seed=2", "cache.sise=1MiB", "run.queue-depth=4"]).map(drop).unwrap_err();
    assert!(why.to_string().starts_with("--set cache.sise=1MiB: there is no key 'sise'"), "{why}");
    let why = set_all(TEXT, &["seed=x", "cache.sise=1MiB"]).map(drop).unwrap_err().to_string();
    assert!(why.starts_with("--set seed=x --set cache.sise=1MiB: "), "{why}");
}

#[test]
fn a_generator_is_exchanged_for_a_file_and_a_file_for_a_generator() {
    let stack = set("trace.file=x.csv").unwrap();
    assert_eq!((stack.trace.file.as_deref(), stack.trace.generator.is_none()), (Some("x.csv"), true));
    let text = "[trace]\nfile = \"x.csv\"\n";
    let stack = set_all(text, &["trace.generator.pages=10", "trace.generator=zipf"]).unwrap();
    assert_eq!(
        (stack.trace.file, stack.trace.generator.unwrap().to_string()),
        (None, "zipf:pages=10".into())
    );
    let both = ["trace.file=x.csv", "trace.generator=zipf"];
    let why = set_all(TEXT, &both).map(drop).unwrap_err().to_string();
    assert!(why.contains("file and generator exclude each other"), "{why}");
}

#[test]
fn what_a_run_reads_is_found_to_its_last_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let part = include_str!("../../../../../devices/slc-4k.toml");
    let ssd = include_str!("../../../../../devices/ssd-slc.toml");
    let line = ssd.lines().find(|line| line.starts_with("nand")).unwrap();
    std::fs::write(at("part.toml"), part).unwrap();
    std::fs::write(at("ssd.toml"), ssd.replace(line, &format!("nand = \"{}\"", at("part.toml")))).unwrap();
    for name in ["w.csv", "w.paths.csv", "x.blktrace.0", "x.blktrace.3", "fat.img"] {
        std::fs::write(at(name), "").unwrap();
    }
    let text = |trace: &str| {
        format!(
            "[trace]\nfile = \"{}\"\n[device]\nprofile = \"{}\"\n[nvram]\ntakes = \"fat:{}\"\n",
            at(trace),
            at("ssd.toml"),
            at("fat.img")
        )
    };
    for (trace, parts) in
        [("w.csv", ["w.csv", "w.paths.csv"]), ("x.blktrace.3", ["x.blktrace.0", "x.blktrace.3"])]
    {
        let stack = set_all(&text(trace), &[]).unwrap();
        let mut expected =
            [parts[0], parts[1], "ssd.toml", "part.toml", "fat.img"].map(|name| PathBuf::from(at(name)));
        expected.sort();
        assert_eq!(stack.inputs(), expected, "{trace}");
    }
    assert!(set_all("", &["device.profile=ssd-slc"]).unwrap().inputs().is_empty());
}

#[test]
fn a_profile_without_an_end_is_not_read_to_it() {
    let why = set("device.profile=/dev/zero").map(drop).unwrap_err().to_string();
    assert!(why.contains("device.profile") && why.contains("/dev/zero is a device; name a file"), "{why}");
    let long = tempfile::NamedTempFile::new().unwrap();
    long.as_file().set_len(2 << 20).unwrap();
    let why = set(&format!("device.profile={}", long.path().display())).map(drop).unwrap_err().to_string();
    assert!(why.contains("device.profile") && why.contains("1.0 MiB"), "{why}");
}

#[test]
fn a_mount_option_that_would_be_dropped_is_refused() {
    let text = |options: &str| format!("[fs]\nkind = \"nfhybrid\"\noptions = {{ {options} }}\n");
    for (options, parts) in [
        ("lag = \"no\"", &["fs.options.lag", "'no'", "TIME[,SIZE]"][..]),
        ("lag = true", &["fs.options.lag", "'yes'"]),
        ("direct = \"maybe\"", &["fs.options.direct", "'maybe'", "true or false"]),
    ] {
        let why = told(&text(options));
        assert!(parts.iter().all(|part| why.contains(part)), "{options}: {why}");
    }
    let stack = set_all(&text("direct = false, lag = \"1s\""), &[]).unwrap();
    assert_eq!(stack.mount_options(), ["lag=1s"]);
}

#[test]
fn layers_that_a_file_system_does_not_have_are_refused_for_every_reader() {
    for (text, told) in [
        ("[fs]\nkind = \"nfhybrid\"\n[disk]\nftl = \"page\"\n", "disk.ftl: a disk has no translation layer"),
        (
            "[fs]\nkind = \"nfhybrid\"\n[nvram]\ntakes = \"heat\"\n",
            "nvram.takes: it is over a device without",
        ),
        ("[fs]\nkind = \"osd\"\n[cache]\npolicy = \"lru\"\nsize = \"1MiB\"\n", "cache: osd drives its flash"),
        ("[fs]\nkind = \"cmfs\"\n[device]\nftl = \"page\"\n", "device.ftl: cmfs drives its flash"),
    ] {
        let why = set_all(text, &[]).unwrap().check_layers_of_kind().unwrap_err().to_string();
        assert!(why.contains(told), "{text}: {why}");
    }
    for kind in ["fat", "nfhybrid"] {
        let text = format!("[fs]\nkind = \"{kind}\"\n[cache]\npolicy = \"lru\"\nsize = \"1MiB\"\n");
        set_all(&text, &[]).unwrap().check_layers_of_kind().unwrap();
    }
}
