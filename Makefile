# strata: GNU make is the whole build system. `make help` lists the targets.
#
# Each configuration (release, asan, tsan, fuzz) has its own folder under build/; the rules are the same.

BUILD ?= build

CFLAGS_COMMON := -std=c11 -D_GNU_SOURCE -I. -Isrc -Itests -g -fno-omit-frame-pointer -MMD -MP \
    -Wall -Wextra -Werror -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
    -Wcast-qual -Wpointer-arith -Wwrite-strings -Wvla -Wundef -Wconversion -Wno-sign-conversion -Wformat=2 \
    -Wimplicit-fallthrough
# One set of objects for the static and the shared library: only what strata.h declares is visible outside.
CFLAGS_release := -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -fPIC -fvisibility=hidden -fno-semantic-interposition
CFLAGS_asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
CFLAGS_tsan    := -O1 -fsanitize=thread
CFLAGS_fuzz    := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all

# The kernels of an instruction set are compiled for it; the program chooses one at run time.
KERNEL_MATH := -ffp-contract=fast -fno-math-errno -fno-trapping-math
CFLAGS_EXTRA_avx2   := -mavx2 -mfma -mf16c $(KERNEL_MATH)
CFLAGS_EXTRA_avxvnni := $(CFLAGS_EXTRA_avx2) -mavxvnni
CFLAGS_EXTRA_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c $(KERNEL_MATH) \
    -mprefer-vector-width=512
CFLAGS_EXTRA_amx := $(CFLAGS_EXTRA_avx512) -mavx512bf16 -mamx-tile -mamx-bf16
CFLAGS_EXTRA_amx_panels := $(CFLAGS_EXTRA_amx)
CFLAGS_EXTRA_avx512q8 := $(CFLAGS_EXTRA_avx512)
# Vectorised for any x86-64: the same numbers on every machine.
CFLAGS_EXTRA_rank := -fno-trapping-math -ffp-contract=off
# The reference, and the blocks it reads: most of the time of tests under the sanitizers.
CFLAGS_EXTRA_ref := -ffp-contract=off
CFLAGS_EXTRA_ref_experts := -ffp-contract=off
CFLAGS_EXTRA_dequant := -ffp-contract=off
CFLAGS_EXTRA_half := -ffp-contract=off
CFLAGS_EXTRA_row := -ffp-contract=off
# Under the sanitizers -O3 takes minutes for these files, and half of the time of -O2 goes into variable tracking.
KERNELS_release := -O3
KERNELS_asan    := -O2 -fno-var-tracking
KERNELS_tsan    := -O2 -fno-var-tracking
KERNELS_fuzz    := -O2 -fno-var-tracking
kernel_flags = $(if $(CFLAGS_EXTRA_$(basename $(2))),$(KERNELS_$(1)) $(CFLAGS_EXTRA_$(basename $(2))))

CLI_LIBS := -ledit
SERVER_LIBS := -lmicrohttpd
LIBS := -lpcre2-8 -lutf8proc -ljansson -lm -lpthread
CC_release := gcc
CC_asan    := gcc
CC_tsan    := gcc
CC_fuzz    := clang

# What the CUDA backend runs is known without it: in the library, and in the plugin.
CUDA_STATEMENT := src/backend/cuda/statement.c
LIB_SOURCES := $(sort $(CUDA_STATEMENT) $(filter-out src/backend/cuda/%,$(wildcard src/*.c src/*/*.c src/*/*/*.c)))
CUDA_HOST := $(patsubst %,src/backend/cuda/%.c,chain classes device graph queue rates segment)
FAKE_SOURCES := tests/plugin/fake.c tests/plugin/failing.c
SERVER_SOURCES := $(sort $(wildcard server/*.c))
CLI_SOURCES := $(sort $(wildcard cli/*.c))
SUPPORT_SOURCES := $(sort $(wildcard tests/support/*.c))
TEST_SOURCES := $(sort $(wildcard tests/unit/*.c tests/golden/*.c tests/conform/*.c tests/fault/*.c))
FUZZ_SOURCES := $(sort $(wildcard tests/fuzz/*.c))
BENCH_SOURCES := $(sort $(wildcard bench/*.c))
TEST_SCRIPTS := $(sort $(wildcard tests/e2e/*.sh tests/serve/test_*.py)) tests/serve/sanitized.sh

PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := all
.PHONY: force all cuda cuda-here emulate emulate-asan run test smoke fetch-model check soak crowd asan tsan fuzz bench install uninstall help clean flags deps-build deps-test deps-dev
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# As many jobs as cores, unless make is called with -j; a make below takes its jobs from the one above.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# V=1 prints a line for every file. Otherwise a terminal shows the current one, and a log nothing.
ifeq ($(V),1)
say = echo "  $(1)"
said = :
else
say = [ ! -t 1 ] || printf '\r\033[K  %s' "$(1)"
said = [ ! -t 1 ] || printf '\r\033[K'
endif

VERSION := $(shell sed -n 's/^\#define STRATA_VERSION "\(.*\)"/\1/p' strata.h)
SONAME := libstrata.so.0
SHARED := libstrata.so.$(VERSION)

## all: build the program, build/strata; with the CUDA plugin where nvcc and a GPU are found
all: $(BUILD)/strata $(BUILD)/libstrata.a $(BUILD)/$(SHARED) $(BUILD)/strata.1 cuda-here
	@$(said)

$(BUILD)/strata: $(BUILD)/release/strata
	@cp -f $< $@.new && mv -f $@.new $@
$(BUILD)/libstrata.a: $(BUILD)/release/libstrata.a
	@cp -f $< $@.new && mv -f $@.new $@
$(BUILD)/$(SHARED): $(LIB_SOURCES:%.c=$(BUILD)/release/%.o)
	@$(call say,ld $@)
	@gcc -shared -Wl,-soname,$(SONAME) -Wl,-z,defs $^ $(LIBS) -o $@.new && mv -f $@.new $@
	@ln -sf $(SHARED) $(BUILD)/$(SONAME) && ln -sf $(SONAME) $(BUILD)/libstrata.so
$(BUILD)/strata.1: $(BUILD)/strata
	@$(BUILD)/strata --print-man > $@.new && mv -f $@.new $@

# --- set-up: installs missing Debian packages, once per change of the list -------------------------------------------
$(BUILD)/.deps-%: packages.txt tools/deps
	@tools/deps $*
	@mkdir -p $(BUILD) && touch $@
# One after the other: only one apt-get can run.
$(BUILD)/.deps-test: | $(BUILD)/.deps-build
$(BUILD)/.deps-dev: | $(BUILD)/.deps-test
deps-build: $(BUILD)/.deps-build
deps-test: $(BUILD)/.deps-build $(BUILD)/.deps-test
deps-dev: $(BUILD)/.deps-build $(BUILD)/.deps-test $(BUILD)/.deps-dev

# --- one set of rules per configuration --------------------------------------------------------------------------------
# Objects depend on the packages (order only), so a fresh machine needs nothing but make.
define config_rules
$(BUILD)/$(1)/%.o: %.c $(BUILD)/.flags-$(1) | $(BUILD)/.deps-build $(2)
	@mkdir -p $$(@D)
	@$$(call say,$$(CC_$(1)) $$<$(if $(filter-out release,$(1)), ($(1))))
	@$$(CC_$(1)) $$(CFLAGS_COMMON) $$(CFLAGS_$(1)) $$(call kernel_flags,$(1),$$(<F)) -c $$< -o $$@
$(BUILD)/$(1)/libstrata.a: $$(LIB_SOURCES:%.c=$(BUILD)/$(1)/%.o)
	@rm -f $$@
	@ar rcs $$@ $$^
$(BUILD)/$(1)/libserver.a: $$(SERVER_SOURCES:%.c=$(BUILD)/$(1)/%.o)
	@rm -f $$@
	@ar rcs $$@ $$^
$(BUILD)/$(1)/strata: $$(CLI_SOURCES:%.c=$(BUILD)/$(1)/%.o) $(BUILD)/$(1)/libserver.a $(BUILD)/$(1)/libstrata.a
	@$$(CC_$(1)) $$(CFLAGS_$(1)) $$^ $$(LIBS) $$(CLI_LIBS) $$(SERVER_LIBS) -o $$@
$(BUILD)/$(1)/tests/%: $(BUILD)/$(1)/tests/%.o $$(SUPPORT_SOURCES:%.c=$(BUILD)/$(1)/%.o) $(BUILD)/$(1)/libserver.a $(BUILD)/$(1)/libstrata.a
	@$$(CC_$(1)) $$(CFLAGS_$(1)) $$^ $$(LIBS) $$(SERVER_LIBS) -lcmocka -o $$@
$(BUILD)/$(1)/bench/%: $(BUILD)/$(1)/bench/%.o $(BUILD)/$(1)/libstrata.a
	@$$(CC_$(1)) $$(CFLAGS_$(1)) $$^ $$(LIBS) -o $$@
# The host part of a plugin on a fake of what is below it.
$(BUILD)/$(1)/tests/fault/test_cuda_fault: $$(CUDA_HOST:%.c=$(BUILD)/$(1)/%.o) $$(FAKE_SOURCES:%.c=$(BUILD)/$(1)/%.o)
-include $$(patsubst %.c,$(BUILD)/$(1)/%.d,$$(LIB_SOURCES) $$(CUDA_HOST) $$(FAKE_SOURCES) $$(SERVER_SOURCES) $$(CLI_SOURCES) $$(SUPPORT_SOURCES) $$(TEST_SOURCES) $$(FUZZ_SOURCES) $$(BENCH_SOURCES))
endef
$(eval $(call config_rules,release,))
$(eval $(call config_rules,asan,))
$(eval $(call config_rules,tsan,))
$(eval $(call config_rules,fuzz,$(BUILD)/.deps-dev))
.SECONDARY:

# Objects are compiled again when the flags change.
$(BUILD)/.flags-%: force
	@mkdir -p $(BUILD)
	@echo '$(CFLAGS_COMMON) $(CFLAGS_$*)' | cmp -s - $@ || echo '$(CFLAGS_COMMON) $(CFLAGS_$*)' >$@
force:

# A fuzz target runs under libFuzzer (clang); in the tests a plain main runs it over its corpus.
$(BUILD)/fuzz/targets/%: $(BUILD)/fuzz/tests/fuzz/%.o $(BUILD)/fuzz/libserver.a $(BUILD)/fuzz/libstrata.a
	@mkdir -p $(@D)
	@clang $(CFLAGS_fuzz) -fsanitize=fuzzer $^ $(LIBS) $(SERVER_LIBS) -o $@
$(BUILD)/asan/corpus/%: $(BUILD)/asan/tests/fuzz/%.o $(BUILD)/asan/tests/fuzz/main/corpus_main.o $(BUILD)/asan/libserver.a $(BUILD)/asan/libstrata.a
	@mkdir -p $(@D)
	@gcc $(CFLAGS_asan) $^ $(LIBS) $(SERVER_LIBS) -o $@

# --- the CUDA plugin: kernels by nvcc, the host part and what it needs of base/ by gcc ---------------------------------
# CUDA_ARCHS: the GPU at hand, without one 9.0; `all`: every architecture that is supported, and PTX for later ones.
NVCC ?= nvcc
CUDA_SUPPORTED := 80 86 89 90 120
CUDA_HERE = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u)
CUDA_ARCHS ?= $(or $(CUDA_HERE),90)
CUDA_LIST = $(if $(filter all,$(CUDA_ARCHS)),$(CUDA_SUPPORTED),$(CUDA_ARCHS))
CUDA_GENCODE = $(foreach a,$(CUDA_LIST),-gencode arch=compute_$(a),code=sm_$(a)) \
    $(if $(filter all,$(CUDA_ARCHS)),$(CUDA_PTX))
CUDA_PTX := -gencode arch=compute_120,code=compute_120
CUDA_INCLUDE ?= $(dir $(shell command -v $(NVCC)))../include
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -I. -Isrc -Werror all-warnings -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror
CUDA_SOURCES := $(CUDA_HOST) $(CUDA_STATEMENT) src/backend/cuda/api.c src/backend/cuda/kernels.c src/backend/cuda/plugin.c src/base/alloc.c src/base/buf.c src/base/cores.c src/base/error.c \
    src/base/fault.c src/base/large.c src/base/slices.c src/base/utf8.c
CUDA_KERNELS := $(sort $(wildcard src/backend/cuda/*.cu))
CUDA_EXPORTS := src/backend/cuda/plugin.map
# For the tests on a GPU, build/cuda80 has a plugin with the code path of 8.0, compiled for the same GPUs (the kernels see
# __CUDA_ARCH__ 800), and build/cuda/tests/test_cuda_fault has the plugin's host part on the real CUDA runtime.
CUDA80_GENCODE = $(foreach a,$(CUDA_LIST),-gencode arch=compute_80,code=sm_$(a))

# $(1): folder of the objects; $(2): the plugin; $(3): the variable with the architectures
define cuda_rules
$(BUILD)/$(1)/%.o: %.c | $(BUILD)/.deps-build
	@mkdir -p $$(@D)
	@$$(call say,gcc $$< ($(1)))
	@gcc $$(CFLAGS_COMMON) $$(CFLAGS_release) -fPIC -fvisibility=hidden -isystem $$(CUDA_INCLUDE) -c $$< -o $$@
$(BUILD)/$(1)/%.cu.o: %.cu | $(BUILD)/.deps-build
	@mkdir -p $$(@D)
	@$$(call say,nvcc $$< ($(1)))
	@$$(NVCC) $$(NVCC_FLAGS) $$($(3)) -MMD -MP -MF $$(@:.o=.d) -c $$< -o $$@
$(BUILD)/$(2): $$(CUDA_SOURCES:%.c=$(BUILD)/$(1)/%.o) $$(CUDA_KERNELS:%=$(BUILD)/$(1)/%.o) | $(CUDA_EXPORTS)
	@$$(NVCC) -shared -cudart static $$($(3)) $$^ -Xlinker -s,-z,defs,--exclude-libs,ALL,--version-script=$(CUDA_EXPORTS) -o $$@
-include $$(patsubst %,$(BUILD)/$(1)/%.d,$$(CUDA_SOURCES:%.c=%) $$(CUDA_KERNELS))
endef
$(eval $(call cuda_rules,cuda,libstrata-cuda.so,CUDA_GENCODE))
$(eval $(call cuda_rules,cuda80,cuda80/libstrata-cuda.so,CUDA80_GENCODE))

$(BUILD)/cuda/tests/test_cuda_fault: $(BUILD)/release/tests/fault/test_cuda_fault.o $(FAKE_SOURCES:%.c=$(BUILD)/release/%.o) \
    $(patsubst %.c,$(BUILD)/cuda/%.o,$(CUDA_HOST) src/backend/cuda/api.c src/backend/cuda/kernels.c) $(CUDA_KERNELS:%=$(BUILD)/cuda/%.o) \
    $(SUPPORT_SOURCES:%.c=$(BUILD)/release/%.o) $(BUILD)/release/libstrata.a
	@mkdir -p $(@D)
	@$(NVCC) -cudart static $(CUDA_GENCODE) -Xlinker -Bstatic,-lstdc++,-Bdynamic $^ $(LIBS) -lcmocka -o $@

## cuda: build the CUDA plugin, build/libstrata-cuda.so (needs nvcc; CUDA_ARCHS=all for every supported GPU)
cuda:
	@$(MAKE) --no-print-directory $(BUILD)/libstrata-cuda.so

# The program is built with the plugin where it can be built and used.
cuda-here:
	@if command -v $(NVCC) >/dev/null && nvidia-smi -L 2>/dev/null | grep -q ^GPU && \
	    ! $(MAKE) -q $(BUILD)/libstrata-cuda.so 2>/dev/null; then \
	    echo "  nvcc and a GPU were found: building the CUDA plugin, too"; $(MAKE) --no-print-directory cuda; fi

# The host part as a plugin on the fake, for tests of what a program does with a GPU.
FAKE_PLUGIN := $(BUILD)/release/tests/plugin/libstrata-cuda.so
FAKE_HOST := $(filter-out %/api.c %/kernels.c %/plugin.c,$(CUDA_SOURCES)) tests/plugin/fake.c tests/plugin/plugin.c
FAKE_OBJECTS := $(patsubst %.c,$(BUILD)/plugin/%.o,$(FAKE_HOST) tests/plugin/table.c)
$(BUILD)/plugin/%.o: %.c | $(BUILD)/.deps-build
	@mkdir -p $(@D)
	@gcc $(CFLAGS_COMMON) $(CFLAGS_release) -fPIC -fvisibility=hidden -c $< -o $@
$(FAKE_PLUGIN): $(FAKE_OBJECTS) | $(CUDA_EXPORTS)
	@mkdir -p $(@D)
	@gcc -shared -Wl,-z,defs,--version-script=$(CUDA_EXPORTS) $^ -lm -o $@
-include $(FAKE_OBJECTS:.o=.d)

# --- the CUDA plugin with its kernels compiled by g++ and emulated (tests/emulate): needs CUDA's headers and no GPU -------
# Misaligned accesses abort; build/emulate-asan also finds accesses out of bounds, and runs with the programs of build/asan.
EMULATE_CC = g++ -std=c++17 -g1 -fPIC -fvisibility=hidden -ffp-contract=off -MMD -MP -Itests/emulate/include -I. -Isrc -Itests \
    -isystem $(CUDA_INCLUDE)
EMULATE_CHECKS := -fsanitize=alignment -fno-sanitize-recover=alignment
EMULATE_SOURCES := $(sort $(wildcard tests/emulate/*.cpp))
EMULATE_HOST := $(FAKE_HOST) src/backend/cuda/kernels.c src/quant/half.c tests/emulate/table.c

# $(1): folder of the objects; $(2): more flags; $(3): the configuration of the test programs
define emulate_rules
$(BUILD)/$(1)/%.cu.o: %.cu tests/emulate/cuda.h | $(BUILD)/.deps-build
	@mkdir -p $$(@D)
	@$$(call say,g++ $$< ($(1)))
	@$$(EMULATE_CC) -O1 -w $(EMULATE_CHECKS) $(2) -include emulate/cuda.h -x c++ -c $$< -o $$@
$(BUILD)/$(1)/%.o: %.cpp | $(BUILD)/.deps-build
	@mkdir -p $$(@D)
	@$$(call say,g++ $$< ($(1)))
	@$$(EMULATE_CC) -O2 -Wall -Wextra -Werror $(2) -c $$< -o $$@
$(BUILD)/$(1)/libstrata-cuda.so: $$(CUDA_KERNELS:%=$(BUILD)/$(1)/%.o) $$(EMULATE_SOURCES:%.cpp=$(BUILD)/$(1)/%.o) \
    $$(EMULATE_HOST:%.c=$(BUILD)/plugin/%.o)
	@g++ -shared -Wl,-z,$(if $(2),undefs,defs) $(EMULATE_CHECKS) $(2) $$^ -lm -o $$@
$(BUILD)/$(1)/test_emulate: $(BUILD)/$(3)/tests/emulate/test_emulate.o $(BUILD)/$(1)/tests/emulate/wrong.cu.o \
    $$(EMULATE_SOURCES:%.cpp=$(BUILD)/$(1)/%.o)
	@g++ $(EMULATE_CHECKS) $(2) $$^ -lcmocka -o $$@
-include $$(patsubst %,$(BUILD)/$(1)/%.d,$$(CUDA_KERNELS) $$(EMULATE_SOURCES:%.cpp=%) tests/emulate/wrong.cu)
endef
$(eval $(call emulate_rules,emulate,,release))
$(eval $(call emulate_rules,emulate-asan,-fsanitize=address,asan))
-include $(EMULATE_HOST:%.c=$(BUILD)/plugin/%.d)

EMULATE_TESTS := $(patsubst %,tests/%,conform/test_conform conform/test_conversations conform/test_forms conform/test_forms_large \
    unit/test_candidates golden/test_model_golden golden/test_chains golden/test_placed_golden golden/test_crowd)
# $(1): sample or all; $(2): folder of the plugin; $(3): configuration of the test programs
emulate = if [ -r "$(CUDA_INCLUDE)/cuda_fp16.h" ]; then \
    $(MAKE) --no-print-directory $(BUILD)/$(2)/libstrata-cuda.so $(BUILD)/$(2)/test_emulate $(EMULATE_TESTS:%=$(BUILD)/$(3)/%) && \
    tests/emulate/run $(1) $(BUILD)/$(2) $(BUILD)/$(3); \
    else echo "emulate: no nvcc and no CUDA_INCLUDE=FOLDER with CUDA's headers: the emulated kernels are left out"; fi

## emulate: test the CUDA kernels without a GPU: compiled by g++, emulated on the CPU (needs nvcc's headers)
emulate: deps-test
	+@$(call emulate,all,emulate,release)

## emulate-asan: the same under the address sanitizer, a sample
emulate-asan: deps-test
	+@$(call emulate,sample,emulate-asan,asan)

RELEASE_TESTS := $(TEST_SOURCES:%.c=$(BUILD)/release/%)
ASAN_TESTS := $(TEST_SOURCES:%.c=$(BUILD)/asan/%)
TSAN_TESTS := $(patsubst %,$(BUILD)/tsan/tests/%,unit/test_pool unit/test_run unit/test_session unit/test_threads unit/test_sched unit/test_stress unit/test_interrupt unit/test_cache_stress \
	unit/test_watch unit/test_store conform/test_attention fault/test_experts_fault conform/test_conform \
	conform/test_conversations)
# valgrind has no AVX-512, computes FMA in software and maps no file of 400 GB: whole models and real shapes are left out.
VALGRIND_TESTS := $(filter-out %/test_model_golden %/test_windows %/test_plan_real,$(RELEASE_TESTS))
CORPUS_TESTS := $(FUZZ_SOURCES:tests/fuzz/%.c=$(BUILD)/asan/corpus/%)
FUZZ_TARGETS := $(FUZZ_SOURCES:tests/fuzz/%.c=$(BUILD)/fuzz/targets/%)
BENCH_PROGRAMS := $(BENCH_SOURCES:%.c=$(BUILD)/release/%)

## run: download the default model once, then chat with it (PROMPT="…" for one answer, MODEL=FILE for another model)
run: all
	@MODEL='$(subst ','\'',$(MODEL))' tools/run-default $(if $(PROMPT),-p '$(subst ','\'',$(PROMPT))')

# Without a network the tests of the model are skipped.
fetch-model: | $(BUILD)/.deps-build
	@tools/fetch-model >/dev/null || echo "strata: the tests of the default model are skipped" >&2

## test: every test, also under the sanitizers, and the fuzz corpus; ends with `N passed, N failed, N skipped`
test: deps-test fetch-model
	@$(MAKE) --no-print-directory all $(RELEASE_TESTS) $(FAKE_PLUGIN) $(BUILD)/asan/strata $(ASAN_TESTS) $(CORPUS_TESTS)
	@tests/run $(TEST_SCRIPTS) $(ASAN_TESTS) $(RELEASE_TESTS) $(CORPUS_TESTS) # the longest first

## smoke: build and briefly run what test does not: the CUDA plugin, its kernels emulated, fuzz, tsan, bench, valgrind, lint (all files), install
smoke: deps-dev all
	@if command -v $(NVCC) >/dev/null; then $(MAKE) --no-print-directory cuda; else echo "smoke: no nvcc: the CUDA plugin is left out"; fi
	+@$(call emulate,sample,emulate,release)
	@$(MAKE) --no-print-directory $(FUZZ_TARGETS) $(TSAN_TESTS) $(BENCH_PROGRAMS) $(BUILD)/release/tests/unit/test_base
	@tests/fuzz/run 2 $(FUZZ_TARGETS)
	@tests/run $(TSAN_TESTS)
	@bench/run $(BENCH_PROGRAMS)
	@tests/run --valgrind $(BUILD)/release/tests/unit/test_base
	@tools/lint
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	    $(MAKE) -s install DESTDIR="$$folder" PREFIX=/usr >/dev/null && "$$folder/usr/bin/strata" --version
	@echo "smoke: passed"

## crowd: conversations in one step, with CROWD_SEEDS (200) seeds for every family
CROWD_SEEDS ?= 200
crowd: deps-test
	@$(MAKE) --no-print-directory $(BUILD)/release/tests/golden/test_crowd
	@STRATA_CROWD_SEEDS=$(CROWD_SEEDS) tests/run $(BUILD)/release/tests/golden/test_crowd

## asan: the tests under the address and undefined-behaviour sanitizers
asan: deps-test
	@$(MAKE) --no-print-directory $(BUILD)/asan/strata $(ASAN_TESTS) $(CORPUS_TESTS)
	@tests/run $(ASAN_TESTS) $(CORPUS_TESTS)

## tsan: the tests with several threads under the thread sanitizer
tsan: deps-test
	@$(MAKE) --no-print-directory $(TSAN_TESTS) $(BUILD)/tsan/strata
	@SANITIZER=tsan tests/run $(TSAN_TESTS) tests/serve/sanitized.sh

## soak: SOAK_REQUESTS (100,000) random requests, then mixed load on a server for SOAK_SECONDS (600), with constant memory
SOAK_SECONDS ?= 600
SOAK_REQUESTS ?= 100000
soak: deps-test all
	@STRATA_SOAK_SECONDS=$(SOAK_SECONDS) STRATA_SOAK_REQUESTS=$(SOAK_REQUESTS) TEST_COMMENTS=1 \
	    TEST_TIMEOUT=$$(($(SOAK_SECONDS) + $(SOAK_REQUESTS) / 100 + 120)) tests/run tests/serve/soak.py

## check: the tests, then the thread sanitizer, clang-tidy, cppcheck and valgrind
check: deps-dev
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory tsan
	@tools/lint
	@tests/run tests/serve/more_clients.py
	@tests/run --valgrind $(VALGRIND_TESTS)

# The flags that a tool needs to parse FILE: language, include folders, instruction set.
flags:
	@echo $(filter -std=% -D% -I% -m%,$(CFLAGS_COMMON) $(CFLAGS_EXTRA_$(basename $(notdir $(FILE)))))

## fuzz: run each libFuzzer target for FUZZ_SECONDS (60) under the sanitizers
fuzz: deps-dev
	@$(MAKE) --no-print-directory $(FUZZ_TARGETS)
	@tests/fuzz/run $(FUZZ_SECONDS) $(FUZZ_TARGETS)

## bench: timings on this machine, and the planner's predictions beside them
bench: all
	@$(MAKE) --no-print-directory $(BENCH_PROGRAMS)
	@bench/run $(BENCH_PROGRAMS)
	@bench/predict --strata $(BUILD)/strata

# What `make install` puts where, and `make uninstall` removes: folder under PREFIX, mode, and files.
DOCS := README.md LICENSE $(sort $(wildcard docs/*.md docs/*.c))
INSTALLED := bin/strata lib/libstrata.a lib/$(SHARED) lib/$(SONAME) lib/libstrata.so lib/pkgconfig/strata.pc \
    lib/strata/libstrata-cuda.so include/strata.h share/man/man1/strata.1 share/bash-completion/completions/strata \
    share/zsh/site-functions/_strata share/fish/vendor_completions.d/strata.fish \
    $(DOCS:%=share/doc/strata/%)
TARGET = $(DESTDIR)$(PREFIX)

define pkg_config
prefix=$(PREFIX)
libdir=$${prefix}/lib
includedir=$${prefix}/include

Name: strata
Description: Language models larger than the GPU
Version: $(VERSION)
Libs: -L$${libdir} -lstrata
Libs.private: $(LIBS)
Cflags: -I$${includedir}
endef

## install: install program, libraries, header, strata.pc, man page, completions and docs under PREFIX (/usr/local)
install: all
	@install -d $(sort $(dir $(INSTALLED:%=$(TARGET)/%)))
	@install -m 755 $(BUILD)/strata $(TARGET)/bin/strata
	@install -m 644 $(BUILD)/libstrata.a $(TARGET)/lib/libstrata.a
	@install -m 755 $(BUILD)/$(SHARED) $(TARGET)/lib/$(SHARED)
	@ln -sf $(SHARED) $(TARGET)/lib/$(SONAME) && ln -sf $(SONAME) $(TARGET)/lib/libstrata.so
	@install -m 644 strata.h $(TARGET)/include/strata.h
	$(file >$(BUILD)/strata.pc,$(pkg_config))
	@install -m 644 $(BUILD)/strata.pc $(TARGET)/lib/pkgconfig/strata.pc
	@if [ -f $(BUILD)/libstrata-cuda.so ]; then \
	    install -m 755 $(BUILD)/libstrata-cuda.so $(TARGET)/lib/strata/libstrata-cuda.so; fi
	@install -m 644 $(BUILD)/strata.1 $(TARGET)/share/man/man1/strata.1
	@$(BUILD)/strata --print-completion bash > $(TARGET)/share/bash-completion/completions/strata
	@$(BUILD)/strata --print-completion zsh > $(TARGET)/share/zsh/site-functions/_strata
	@$(BUILD)/strata --print-completion fish > $(TARGET)/share/fish/vendor_completions.d/strata.fish
	@for file in $(DOCS); do install -m 644 $$file $(TARGET)/share/doc/strata/$$file; done
	@echo "strata $(VERSION) is installed in $(TARGET)$(if $(DESTDIR),,; a new library may need \`ldconfig\`)"

## uninstall: remove what install installed
uninstall:
	@rm -f $(INSTALLED:%=$(TARGET)/%)
	@rmdir --ignore-fail-on-non-empty $(TARGET)/share/doc/strata/docs $(TARGET)/share/doc/strata $(TARGET)/lib/strata 2>/dev/null || true
	@echo "strata was removed from $(TARGET)"

## clean: remove build/
clean:
	rm -rf $(BUILD)

## help: this list
help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST))
