# Dewpoint. `make help` lists what there is.
.DELETE_ON_ERROR:
SHELL := /bin/bash

comma := ,
BUILD ?= build
SANITIZE ?=
LARGE ?=
VERSION := 0.1.0
PREFIX ?= /usr/local
DESTDIR ?=

CC := gcc
CFLAGS ?= -O3 -g
# No contraction and no fast math: the bits of every operator are defined (docs/numerics.md).
DW_CFLAGS := -std=gnu11 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -pthread \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers -Wvla -Werror=implicit \
	-I. -Isrc -DDW_VERSION='"$(VERSION)"'
MPI_CFLAGS = $(shell mpicc --showme:compile)
LDLIBS = $(shell mpicc --showme:link) $(shell pkg-config --libs jansson libpcre2-8 libutf8proc yaml-0.1) -lm -pthread
ifneq ($(SANITIZE),)
BUILD := build/$(subst $(comma),-,$(SANITIZE))
DW_CFLAGS += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SANITIZE)
endif

SOURCES := $(wildcard src/*/*.c mpi/*.c)
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o)
MAIN := $(BUILD)/src/cli/main.o
LIBRARY := $(filter-out $(MAIN),$(OBJECTS))
# Criterion programs: one a directory of tests, and helpers that they share.
TEST_DIRS := unit ranks reference
# What needs a large model or much time: only in check-large.
LARGE_TEST_DIRS := reference/large
TEST_PROGRAMS := $(foreach d,$(TEST_DIRS) $(LARGE_TEST_DIRS),$(if $(wildcard tests/$(d)/*.c),$(BUILD)/tests/$(d)/run))
TEST_SHARED := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/shared/*.c))

.PHONY: all
all: dewpoint

dewpoint: $(BUILD)/dewpoint
	@cp --remove-destination $< $@

$(BUILD)/dewpoint: $(MAIN) $(BUILD)/libdewpoint.a
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/libdewpoint.a: $(LIBRARY)
	@rm -f $@
	@ar rcs $@ $^

# Instruction sets by file name.
$(BUILD)/%_avx2.o $(BUILD)/%_avx2.tidy: ISA_CFLAGS := -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o $(BUILD)/%_avx512.tidy: ISA_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
$(BUILD)/%_avx512vnni.o $(BUILD)/%_avx512vnni.tidy: ISA_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c
$(BUILD)/mpi/%.o $(BUILD)/mpi/%.tidy: ISA_CFLAGS = $(MPI_CFLAGS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $<"
	@$(CC) $(DW_CFLAGS) $(CFLAGS) $(ISA_CFLAGS) -MMD -MP -c -o $@ $<

define test_program
$(BUILD)/tests/$(1)/run: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/$(1)/*.c)) $(TEST_SHARED) $(BUILD)/libdewpoint.a
	@echo "  ld $$@"
	@$$(CC) $$(LDFLAGS) -o $$@ $$^ -lcriterion $$(LDLIBS)
endef
$(foreach d,$(TEST_DIRS) $(LARGE_TEST_DIRS),$(eval $(call test_program,$(d))))

# Programs that the rank tests launch under mpirun.
RANK_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/ranks/programs/*.c))
$(RANK_PROGRAMS): $(BUILD)/%: $(BUILD)/%.o $(TEST_SHARED) $(BUILD)/libdewpoint.a
	@echo "  ld $@"
	@$(CC) $(LDFLAGS) -o $@ $^ -lcriterion $(LDLIBS)

.PHONY: tests
tests: dewpoint $(TEST_PROGRAMS) $(RANK_PROGRAMS)

# Root and more ranks than cores are refused by mpirun unless it is told otherwise.
CHECK_ENVIRONMENT = OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
	OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 DEWPOINT=$(BUILD)/dewpoint \
	ASAN_OPTIONS=fast_unwind_on_malloc=0:abort_on_error=1 LSAN_OPTIONS=suppressions=tests/lsan.supp:print_suppressions=0

.PHONY: check
check: deps
	@$(MAKE) --no-print-directory tests fetch-models
	@for d in $(TEST_DIRS); do echo "== tests/$$d"; $(CHECK_ENVIRONMENT) $(BUILD)/tests/$$d/run -j1 --timeout 600 || exit 1; done

.PHONY: check-large
check-large: deps
	@$(MAKE) --no-print-directory tests fetch-models LARGE=1
	@for d in $(LARGE_TEST_DIRS); do echo "== tests/$$d"; $(CHECK_ENVIRONMENT) $(BUILD)/tests/$$d/run -j1 --timeout 3600 || exit 1; done

.PHONY: deps
deps:
	@launch/install-deps

.PHONY: fetch-models
fetch-models:
	@LARGE=$(LARGE) launch/fetch-models

.PHONY: demo
demo: deps
	@$(MAKE) --no-print-directory dewpoint
	@launch/fetch-models smollm2-135m
	@launch/demo

# DESTDIR: where a package is put together; not part of any path that is written into it.
DOCUMENTS = $(wildcard README.md LICENSE) $(shell find docs -type f)
.PHONY: install
install: dewpoint
	install -Dm755 $(BUILD)/dewpoint $(DESTDIR)$(PREFIX)/bin/dewpoint
	@for f in $(DOCUMENTS); do install -Dm644 $$f $(DESTDIR)$(PREFIX)/share/doc/dewpoint/$$f || exit 1; done

# clang-format and clang-tidy of Debian 12 (version 14): other versions format otherwise.
FORMATTED = $(filter-out tests/unit/gguf_dequantized.h,$(shell find src mpi tests -name '*.[ch]')) # that one is data
.PHONY: format
format:
	clang-format -i $(FORMATTED)

# A file is checked again when its object was built again, so this builds too. clang 14 knows _Float16 by another name.
TIDY := $(patsubst %.c,$(BUILD)/%.tidy,$(SOURCES) $(shell find tests -name '*.c'))
.PHONY: lint
lint: $(TIDY)
	clang-format --dry-run --Werror $(FORMATTED)

$(BUILD)/%.tidy: %.c $(BUILD)/%.o .clang-tidy tests/.clang-tidy
	@echo "  tidy $<"
	@clang-tidy --quiet $< -- $(DW_CFLAGS) $(ISA_CFLAGS) -D_Float16=__fp16 2>$@.log || { cat $@.log >&2; exit 1; }
	@touch $@

.PHONY: clean
clean:
	rm -rf build dewpoint

.PHONY: help
help:
	@echo "make              build ./dewpoint"
	@echo "make install      PREFIX=/usr/local: the program into bin, documents into share/doc/dewpoint (DESTDIR= for packages)"
	@echo "make demo         install what is missing, build, fetch a model, decode a long text on 4 ranks twice"
	@echo "make check        build and run all tests (SANITIZE=address,undefined: with sanitizers, under build/)"
	@echo "make check-large  tests that need a large model (a gigabyte is downloaded)"
	@echo "make deps         install the Debian packages that are missing (as root; else print the command)"
	@echo "make fetch-models download the models of demo and tests into the cache (DEWPOINT_CACHE, default ~/.cache/dewpoint);"
	@echo "                  LARGE=1: also that of check-large"
	@echo "make format       format the sources (clang-format 14)"
	@echo "make lint         check format and sources (clang-format and clang-tidy 14), every warning is an error"
	@echo "make clean        remove what was built, keep what was downloaded"

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
