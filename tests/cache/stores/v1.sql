-- A store of schema version 1 with a row or two in each table, as Kiln of that version made it.
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 1263094862;
PRAGMA user_version = 1;
BEGIN;
CREATE TABLE decision_kinds (kind INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO decision_kinds VALUES(1,'pinned');
INSERT INTO decision_kinds VALUES(2,'measured');
INSERT INTO decision_kinds VALUES(3,'borrowed');
INSERT INTO decision_kinds VALUES(4,'predicted');
INSERT INTO decision_kinds VALUES(5,'default');
CREATE TABLE verification_levels (level INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO verification_levels VALUES(0,'none');
INSERT INTO verification_levels VALUES(1,'simulator');
INSERT INTO verification_levels VALUES(2,'device');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('created_at','1700000002');
INSERT INTO meta VALUES('opened_at','1700000002');
CREATE TABLE problems (
  id INTEGER PRIMARY KEY,
  op TEXT NOT NULL,
  op_version INTEGER NOT NULL,
  shape TEXT NOT NULL,               -- canonical JSON of the static sizes, dtypes and layouts
  bucket TEXT NOT NULL,              -- canonical JSON of the bucket of the dynamic sizes
  UNIQUE (op, op_version, shape, bucket)
) STRICT;
INSERT INTO problems VALUES(1,'sample_op',1,'{"K":512,"ratio":4}','{"T":16}');
INSERT INTO problems VALUES(2,'sample_op',1,'{"K":512,"ratio":4}','{"T":64}');
CREATE TABLE gpu_classes (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,          -- canonical JSON of the limits
  label TEXT NOT NULL                -- slug of a product of the class, for people
) STRICT;
INSERT INTO gpu_classes VALUES(1,'{"cc":80,"sm_count":108}','a100-sxm4-80gb');
CREATE TABLE decisions (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  kind INTEGER NOT NULL REFERENCES decision_kinds (kind),
  config TEXT NOT NULL,              -- canonical JSON
  plan TEXT NOT NULL,                -- plans.id in this file or in a layer below
  checksum TEXT NOT NULL,
  PRIMARY KEY (problem, gpu_class, kind)
) STRICT, WITHOUT ROWID;
INSERT INTO decisions VALUES(1,1,2,'{"threads":128}','00fdfff11ec8e77972de6e4eb05c7abd','906155f52b58df8cac156623a7a7ea3f');
CREATE TABLE decision_reasons (
  problem INTEGER NOT NULL,
  gpu_class INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  gpu_label TEXT NOT NULL,           -- the product it was decided for or on
  reason TEXT NOT NULL,
  is_partial INTEGER NOT NULL CHECK (is_partial IN (0, 1)),  -- 1: time ran out, not all were tried
  limits TEXT NOT NULL,              -- slug of --limits under which a stand-in measured it, or ""
  tie_group TEXT NOT NULL,           -- JSON array of the configs within the noise
  time_ns REAL NOT NULL,             -- 0: not known
  default_time_ns REAL NOT NULL,     -- 0: not known
  decided_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class, kind),
  FOREIGN KEY (problem, gpu_class, kind)
    REFERENCES decisions (problem, gpu_class, kind) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO decision_reasons VALUES(1,1,2,'a100-sxm4-80gb','12 % faster than the default',1,'rtx-3090','["{\"threads\":128}","{\"threads\":256}"]',4321.1249999999999998,4911.4999999999999998,1700000000);
CREATE TABLE plans (
  id TEXT PRIMARY KEY CHECK (length(id) = 32),
  op TEXT NOT NULL,
  op_version INTEGER NOT NULL,
  shape TEXT NOT NULL,
  config TEXT NOT NULL,
  arch TEXT NOT NULL,                -- "sm_86"
  reduction_signature TEXT NOT NULL, -- plans with the same signature add in the same order
  packed_layout TEXT NOT NULL,       -- tag of the weight layout; "": the checkpoint's own
  checksum TEXT NOT NULL,            -- of this row and of its plan_kernels
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO plans VALUES('00fdfff11ec8e77972de6e4eb05c7abd','sample_op',1,'{"K":512,"ratio":4}','{"threads":128}','sm_80','k64-split4','fp4-tile16-v1','1c9bff83f698d297a25deb693d83b989',1700000002);
CREATE TABLE plan_kernels (
  plan TEXT NOT NULL REFERENCES plans (id) ON DELETE CASCADE,
  ordinal INTEGER NOT NULL,          -- 0, 1, ...: order of the launches
  binary TEXT NOT NULL,              -- binaries.key in this file or in a layer below
  entry TEXT NOT NULL,
  threads INTEGER NOT NULL,
  dynamic_smem_bytes INTEGER NOT NULL,
  PRIMARY KEY (plan, ordinal)
) STRICT, WITHOUT ROWID;
INSERT INTO plan_kernels VALUES('00fdfff11ec8e77972de6e4eb05c7abd',0,'16c237c70572792a52290138a7367f91','sample_kernel',128,32768);
CREATE TABLE packed_layouts (
  tag TEXT PRIMARY KEY,              -- names the layout and its version
  weight_format TEXT NOT NULL,       -- the checkpoint format it is made from
  description TEXT NOT NULL          -- canonical JSON: tiles, order, scale placement
) STRICT, WITHOUT ROWID;
INSERT INTO packed_layouts VALUES('fp4-tile16-v1','fp4','{"tile":16}');
CREATE TABLE binaries (
  key TEXT PRIMARY KEY CHECK (length(key) = 32),
  source_hash TEXT NOT NULL,
  arch TEXT NOT NULL,                -- "sm_86" for a cubin, "compute_80" for PTX
  options TEXT NOT NULL,
  entry TEXT NOT NULL,
  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),  -- 0 cubin, 1 PTX
  registers INTEGER NOT NULL,
  spill_store_bytes INTEGER NOT NULL,
  spill_load_bytes INTEGER NOT NULL,
  stack_bytes INTEGER NOT NULL,
  static_smem_bytes INTEGER NOT NULL,
  log TEXT NOT NULL,
  nvrtc_version TEXT NOT NULL,
  compile_ns INTEGER NOT NULL,
  checksum TEXT NOT NULL,            -- of this row, without the image
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO binaries VALUES('16c237c70572792a52290138a7367f91','d1c9c5aab27e63fefe29878c12ab0962','sm_80','--fmad=false --gpu-architecture=sm_80','sample_kernel',0,40,8,16,24,1024,replace('ptxas info: used 40 registers\n','\n',char(10)),'13.0',123456789,'35c3c49c2ad83f5d725418309fa92941',1700000002);
CREATE TABLE images (
  id INTEGER PRIMARY KEY,
  binary TEXT NOT NULL UNIQUE REFERENCES binaries (key) ON DELETE CASCADE,
  codec INTEGER NOT NULL,            -- 1 zstd
  raw_bytes INTEGER NOT NULL,
  checksum TEXT NOT NULL,            -- XXH3 of the raw bytes
  used_at INTEGER NOT NULL,          -- for gc, by the hour
  data BLOB NOT NULL
) STRICT;
INSERT INTO images VALUES(1,'16c237c70572792a52290138a7367f91',1,23,'1d7ff48966fe39ff468a35b85b5bb404',1700000002,X'28b52ffd2017b900007f454c4620696d616765206f662076657273696f6e2031');
CREATE TABLE verifications (
  plan TEXT NOT NULL,                -- names the binaries that ran
  problem INTEGER NOT NULL REFERENCES problems (id),
  verified_by INTEGER NOT NULL REFERENCES verification_levels (level),
  card TEXT NOT NULL,                -- name, or "simulator"
  driver TEXT NOT NULL,              -- version, "" for the simulator
  passed INTEGER NOT NULL CHECK (passed IN (0, 1)),
  tolerance TEXT NOT NULL,
  worst_error REAL,                  -- in units of the tolerance; NULL: not a number
  detail TEXT NOT NULL,
  verified_at INTEGER NOT NULL,
  PRIMARY KEY (problem, plan, verified_by, card)
) STRICT, WITHOUT ROWID;
INSERT INTO verifications VALUES('00fdfff11ec8e77972de6e4eb05c7abd',1,2,'A100','580',1,'bit-exact',0.25,'7 cases',1700000001);
CREATE TABLE timings (
  plan TEXT NOT NULL,
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  method TEXT NOT NULL,
  limits TEXT NOT NULL,              -- slug of --limits, or ""
  device TEXT NOT NULL,
  time_ns REAL NOT NULL,
  spread_ns REAL NOT NULL,
  rounds INTEGER NOT NULL,
  timed_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class, plan, method, limits, device)
) STRICT, WITHOUT ROWID;
INSERT INTO timings VALUES('00fdfff11ec8e77972de6e4eb05c7abd',1,1,'graph replay, cold, interleaved','','A100, driver 580',4321.1249999999999998,12.5,9,1700000002);
CREATE TABLE rejections (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  config TEXT NOT NULL,
  plan TEXT NOT NULL,                -- id of the plan that ran, perhaps not in plans; zeros: none
  limits TEXT NOT NULL,              -- slug of --limits that it ran under, or ""
  stage TEXT NOT NULL,
  reason TEXT NOT NULL,
  detail TEXT NOT NULL,
  rejected_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class, config)
) STRICT, WITHOUT ROWID;
INSERT INTO rejections VALUES(1,1,'{"threads":1024}','b07acdfa351055e564d18e3094281610','rtx-3090','verify','wrong','idx[3, 7] is 12, expected -1',1700000002);
CREATE TABLE packs (
  path TEXT PRIMARY KEY,
  ordinal INTEGER NOT NULL UNIQUE,
  added_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO packs VALUES('/packs/base.db',0,1700000000);
CREATE TABLE decision_tombstones (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  reason TEXT NOT NULL,
  hidden_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class)
) STRICT, WITHOUT ROWID;
INSERT INTO decision_tombstones VALUES(2,1,'slower than the default',1700000002);
CREATE TABLE binary_tombstones (
  binary TEXT PRIMARY KEY,
  reason TEXT NOT NULL,
  hidden_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO binary_tombstones VALUES('00112233445566778899aabbccddeeff','compiled for another driver',1700000000);
CREATE TABLE leases (
  key TEXT PRIMARY KEY,              -- a binary key, or a problem and a GPU class
  holder_host TEXT NOT NULL,
  holder_boot_id TEXT NOT NULL,      -- a pid means something on one boot of one host only
  holder_pid INTEGER NOT NULL,
  holder_started_at INTEGER NOT NULL,-- start of the process, against reuse of the pid
  taken_at INTEGER NOT NULL,
  heartbeat_at INTEGER NOT NULL,
  deadline_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO leases VALUES('ffeeddccbbaa99887766554433221100','node3','5f1e2d3c',4711,1699999990,1700000000,1700000005,1700000600);
CREATE INDEX plan_kernels_by_binary ON plan_kernels (binary);
CREATE VIEW verified_plans AS
  SELECT v.problem, v.plan, l.name AS verified
  FROM (SELECT problem, plan, CASE WHEN min(passed) = 0 THEN 0 ELSE max(verified_by) END AS level
        FROM verifications GROUP BY problem, plan) AS v
  JOIN verification_levels AS l ON l.level = v.level AND l.level > 0;
CREATE VIEW winners AS
  SELECT p.op, json_patch(p.shape, p.bucket) AS problem, r.gpu_label AS gpu, d.config,
         k.name AS kind, round(nullif(r.time_ns, 0) / 1000, 3) AS time_us, v.verified,
         datetime(r.decided_at, 'unixepoch') AS decided_at, r.reason,
         (SELECT f.card || ': ' || f.detail FROM verifications AS f
          WHERE f.problem = d.problem AND f.plan = d.plan AND f.passed = 0
          ORDER BY f.card LIMIT 1) AS failure
  FROM decisions AS d
  JOIN decision_reasons AS r USING (problem, gpu_class, kind)
  JOIN problems AS p ON p.id = d.problem
  JOIN decision_kinds AS k ON k.kind = d.kind
  LEFT JOIN verified_plans AS v ON v.problem = d.problem AND v.plan = d.plan
  WHERE d.kind = (SELECT o.kind FROM decisions AS o
                  WHERE o.problem = d.problem AND o.gpu_class = d.gpu_class
                  ORDER BY EXISTS (SELECT 1 FROM verifications AS f
                                   WHERE f.problem = o.problem AND f.plan = o.plan
                                     AND f.passed = 0), o.kind
                  LIMIT 1)
  ORDER BY p.op, r.gpu_label, p.shape, p.bucket;
CREATE VIEW candidates AS
  SELECT p.op, json_patch(p.shape, p.bucket) AS problem, g.label AS gpu, plans.config,
         round(t.time_ns / 1000, 3) AS time_us, round(t.spread_ns / 1000, 3) AS spread_us,
         t.rounds, t.method, t.limits, v.verified, t.device,
         datetime(t.timed_at, 'unixepoch') AS timed_at
  FROM timings AS t
  JOIN problems AS p ON p.id = t.problem
  JOIN gpu_classes AS g ON g.id = t.gpu_class
  LEFT JOIN plans ON plans.id = t.plan
  LEFT JOIN verified_plans AS v ON v.problem = t.problem AND v.plan = t.plan
  ORDER BY p.op, g.label, p.shape, p.bucket, t.limits, t.time_ns;
CREATE VIEW rejects AS
  SELECT p.op, json_patch(p.shape, p.bucket) AS problem, g.label AS gpu, r.config, r.stage,
         r.reason, r.detail
  FROM rejections AS r
  JOIN problems AS p ON p.id = r.problem
  JOIN gpu_classes AS g ON g.id = r.gpu_class
  ORDER BY p.op, g.label, p.shape, p.bucket, r.stage, r.reason;
CREATE VIEW kernels AS
  SELECT plans.op, plans.shape, plans.config, b.arch, k.ordinal, b.entry, k.threads,
         k.dynamic_smem_bytes, b.static_smem_bytes, b.registers,
         b.spill_store_bytes + b.spill_load_bytes AS spill_bytes, i.raw_bytes AS image_bytes,
         length(i.data) AS stored_bytes, b.nvrtc_version, b.key AS binary
  FROM binaries AS b
  LEFT JOIN images AS i ON i.binary = b.key
  LEFT JOIN plan_kernels AS k ON k.binary = b.key
  LEFT JOIN plans ON plans.id = k.plan
  ORDER BY plans.op, b.arch, plans.shape, plans.config, k.ordinal;
COMMIT;
