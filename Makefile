# Millpond. `make run` and `make test` are all a newcomer needs; each sets up what is missing.
.PHONY: run test bench sim soak fuzz interop lint setup clean
CARGO ?= cargo
# Tests that drive a daemon wait half of their time: four of them keep two cores busy.
THREADS := $(or $(RUST_TEST_THREADS),$(shell n=$$(nproc); echo $$((n < 4 ? 4 : n))))
# Debian's cargo and rustup's both put build products here unless told otherwise.
TARGET := $(or $(CARGO_TARGET_DIR),target)

## run: build, create a demo pool (the first time), serve its volume over NBD and iSCSI on loopback and say how to connect
run:
	@scripts/setup build
	$(CARGO) build --release
	@MILLPOND=$(TARGET)/release/millpond scripts/demo

## test: everything that must hold, in under 25 minutes on two cores after the build
test: 
	@scripts/setup test
	@$(MAKE) --no-print-directory lint
	@echo '$(CARGO) test, $(THREADS) tests of a program at a time'
	@RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace --no-fail-fast

## lint: formatting and clippy, if this toolchain has them
lint:
	@if $(CARGO) fmt --version >/dev/null 2>&1; then echo '$(CARGO) fmt --check'; $(CARGO) fmt --all --check; \
	else echo 'lint: NOT RUN: this toolchain has no rustfmt'; fi
	@if $(CARGO) clippy --version >/dev/null 2>&1; then echo '$(CARGO) clippy'; $(CARGO) clippy --workspace --all-targets -- -D warnings; \
	else echo 'lint: NOT RUN: this toolchain has no clippy'; fi

## bench: speed as ratios to peers measured in the same run
bench:
	@scripts/setup bench
	$(CARGO) build --release
	@MILLPOND=$(TARGET)/release/millpond scripts/bench

## sim: the long campaigns: histories with power cuts, every order of operations, damaged pools (MILLPOND_SEED=… replays one)
sim:
	@scripts/setup test
	MILLPOND_SEEDS=$(or $(SEEDS),2000) $(CARGO) test --release -p millpond-engine --test engine model -- --nocapture
	MILLPOND_DEPTH=$(or $(DEPTH),6) $(CARGO) test --release -p millpond-engine --test engine interleavings -- --nocapture
	MILLPOND_CUTS=$(or $(CUTS),200) $(CARGO) test --release -p millpond-engine --test engine cuts -- --nocapture
	MILLPOND_HISTORIES=$(or $(HISTORIES),1000) $(CARGO) test --release -p millpond-engine --test engine histories -- --nocapture
	MILLPOND_FAULTS=$(or $(FAULTS),2000) $(CARGO) test --release -p millpond-engine --test engine faults -- --nocapture
	MILLPOND_KILLS=$(or $(KILLS),200) $(CARGO) test --release -p millpond --test cli kill9 -- --nocapture
	MILLPOND_MEMORY_SECONDS=$(or $(MEMORY_SECONDS),600) MILLPOND_MEMORY_SIZES=256,512,2048 $(CARGO) test --release -p millpond --test alone memory_limit -- --nocapture
	MILLPOND_SIM_ROUNDS=$(or $(ROUNDS),10000) $(CARGO) test --release -p millpond-pool --test pool damage:: -- --nocapture

## soak: hours of random faults under clients that verify: kills, restarts, cut connections, aborts, resets (SECONDS=…; MILLPOND_SEED=… repeats one)
soak:
	@scripts/setup test
	MILLPOND_SOAK=$(or $(SECONDS),14400) $(CARGO) test --release -p millpond --test alone outages -- --nocapture

## fuzz: ten million mutated inputs over every decoder, and a hundredth of that over the protocol cores; no panic, no hang, bounded memory
fuzz:
	@scripts/setup build
	MILLPOND_FUZZ_ITERATIONS=$(or $(ITERATIONS),10000000) $(CARGO) test --release -p millpond-ondisk --test mutate -- --nocapture
	MILLPOND_FUZZ_ITERATIONS=$(or $(STRANGERS),100000) $(CARGO) test --release -p millpond-iscsi -p millpond-nbd strangers -- --nocapture

## interop: a real Linux client on our targets, and the real OpenZFS kernel module, which takes pools over from us and we from it, in emulated machines
##   (three quarters of an hour; the first time it builds the module)
interop:
	@scripts/setup test
	$(CARGO) build --release
	@MILLPOND=$(TARGET)/release/millpond oracles/linux-interop
	@MILLPOND=$(TARGET)/release/millpond oracles/openzfs-interop

setup:
	@scripts/setup bench

clean:
	$(CARGO) clean
