# Dewpoint. `make help` lists what there is.
.DELETE_ON_ERROR:
SHELL := /bin/bash

BUILD ?= build
SANITIZE ?=
VERSION := 0.1.0

CC := gcc
CFLAGS ?= -O3 -g
# No contraction and no fast math: the bits of every operator are defined (docs/numerics.md).
DW_CFLAGS := -std=gnu11 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -pthread \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Wno-sign-conversion -Wvla -Werror=implicit \
	-I. -Isrc -DDW_VERSION='"$(VERSION)"'
MPI_CFLAGS = $(shell mpicc --showme:compile)
LDLIBS = $(shell mpicc --showme:link) $(shell pkg-config --libs jansson libpcre2-8) -lm -pthread
ifneq ($(SANITIZE),)
BUILD := build/$(subst $(comma),-,$(SANITIZE))
DW_CFLAGS += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SANITIZE)
endif
comma := ,

SOURCES := $(wildcard src/*/*.c mpi/*.c)
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o)
MAIN := $(BUILD)/src/cli/main.o
LIBRARY := $(filter-out $(MAIN),$(OBJECTS))
# Criterion programs: one a directory of tests, and helpers that they share.
TEST_DIRS := unit ranks reference
TEST_PROGRAMS := $(foreach d,$(TEST_DIRS),$(if $(wildcard tests/$(d)/*.c),$(BUILD)/tests/$(d)/run))
TEST_SHARED := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/shared/*.c))

.PHONY: all
all: dewpoint

dewpoint: $(BUILD)/dewpoint
	cp $< $@

$(BUILD)/dewpoint: $(MAIN) $(BUILD)/libdewpoint.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/libdewpoint.a: $(LIBRARY)
	rm -f $@
	ar rcs $@ $^

# Instruction sets by file name.
$(BUILD)/%_avx2.o: ISA_CFLAGS := -mavx2 -mfma -mf16c
$(BUILD)/%_avx512.o: ISA_CFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
$(BUILD)/mpi/%.o: ISA_CFLAGS = $(MPI_CFLAGS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(DW_CFLAGS) $(CFLAGS) $(ISA_CFLAGS) -MMD -MP -c -o $@ $<

define test_program
$(BUILD)/tests/$(1)/run: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/$(1)/*.c)) $(TEST_SHARED) $(BUILD)/libdewpoint.a
	$$(CC) $$(LDFLAGS) -o $$@ $$^ -lcriterion $$(LDLIBS)
endef
$(foreach d,$(TEST_DIRS),$(eval $(call test_program,$(d))))

.PHONY: tests
tests: dewpoint $(TEST_PROGRAMS)

.PHONY: clean
clean:
	rm -rf build dewpoint

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
