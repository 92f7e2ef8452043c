-- SPDX-License-Identifier: Apache-2.0
-- `tables.py` for SQLite, for who makes a database without loading SQLAlchemy.

create table intarsia_key (
  id INTEGER not null,
  digest VARCHAR(32) not null,
  region TEXT not null,
  target TEXT not null,
  next_region TEXT not null,
  next_target TEXT not null,
  backend TEXT not null,
  machine VARCHAR(32) not null,
  threads VARCHAR(32) not null,
  primary key (id),
  unique (digest)
);

create table intarsia_machine (
  digest VARCHAR(32) not null,
  text TEXT not null,
  primary key (digest)
);

create table intarsia_meta (
  name VARCHAR(64) not null,
  value TEXT not null,
  primary key (name)
);

create table intarsia_verdict (
  digest VARCHAR(32) not null,
  model VARCHAR(64) not null,
  targets TEXT not null,
  backends TEXT not null,
  machine VARCHAR(32) not null,
  threads VARCHAR(32) not null,
  constraints TEXT not null,
  objective VARCHAR(32) not null,
  regions TEXT not null,
  seconds DOUBLE not null,
  single TEXT not null,
  single_seconds DOUBLE not null,
  predicted_seconds DOUBLE not null,
  confidence DOUBLE not null,
  is_mixed BOOLEAN not null,
  decided_at DOUBLE not null,
  session VARCHAR(64) not null,
  report TEXT not null,
  primary key (digest)
);

create table intarsia_poison (
  key_id INTEGER not null,
  code VARCHAR(64) not null,
  reason TEXT not null,
  taken_at DOUBLE not null,
  session VARCHAR(64) not null,
  primary key (key_id),
  foreign key (key_id) references intarsia_key (id) on delete cascade
);

create table intarsia_sample (
  id INTEGER not null,
  key_id INTEGER not null,
  seconds DOUBLE not null,
  anchor_seconds DOUBLE not null,
  anchor TEXT not null,
  taken_at DOUBLE not null,
  session VARCHAR(64) not null,
  primary key (id),
  foreign key (key_id) references intarsia_key (id) on delete cascade
);

create index intarsia_sample_anchor on intarsia_sample (anchor);

create index intarsia_sample_key on intarsia_sample (key_id);

create table intarsia_weight (
  id INTEGER not null,
  key_id INTEGER not null,
  nbytes BIGINT not null,
  taken_at DOUBLE not null,
  session VARCHAR(64) not null,
  primary key (id),
  foreign key (key_id) references intarsia_key (id) on delete cascade
);

create index intarsia_weight_key on intarsia_weight (key_id);
