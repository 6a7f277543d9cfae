# `make` builds bin/nhc-gpu and needs no root; `make check` runs it on this machine.

GO         ?= go
DESTDIR    ?=
PREFIX     ?= /usr
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
BIN        ?= bin/nhc-gpu
FUZZTIME   ?= 10s
# v1.2.3, or v1.2.3-4-gabcdef0 between releases; a tree without tags is 0.0.0. A source archive has
# these three in rpm/source.mk.
-include rpm/source.mk
VERSION    ?= $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || echo v0.0.0)
COMMIT     ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
# the time stamps in packages
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# Tools that are not in PATH are run at these versions.
GOLANGCI_LINT_VERSION = v2.15.0
STATICCHECK_VERSION   = v0.8.2

# The program looks up DCGM's and NVML's libraries at run time. With -z now, which RPM's hardening
# flags request, the program would die at its start. The last -z takes precedence, so this option
# must stay the last of the linker's command line.
STAMP      = -X main.version=$(VERSION:v%=%) -X main.commit=$(COMMIT)
GO_LDFLAGS = $(STAMP) -extldflags=-Wl,-z,lazy
export CGO_ENABLED = 1
export CGO_CFLAGS := $(filter-out -Wno-deprecated-declarations,$(or $(CGO_CFLAGS),-O2 -g)) -Wno-deprecated-declarations

# LBNL NHC has its helpers in /usr/lib on Debian, in /usr/libexec elsewhere.
HELPERDIR ?= $(PREFIX)/$(if $(wildcard /etc/debian_version),lib,libexec)/nhc
# Where bash-completion, zsh and fish look for the completion of a program.
BASHCOMPDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHCOMPDIR  ?= $(PREFIX)/share/zsh/site-functions
FISHCOMPDIR ?= $(PREFIX)/share/fish/vendor_completions.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
# compat has LBNL NHC's names: `make install PARTS=main` installs beside LBNL NHC.
PARTS ?= main compat
paths  = SBIN='$(PREFIX)/sbin' SHARE='$(PREFIX)/share' SYSCONF='$(SYSCONFDIR)' UNITS='$(UNITDIR)' TMPFILES='$(TMPFILESDIR)' HELPERS='$(HELPERDIR)' \
  BASHCOMP='$(BASHCOMPDIR)' ZSHCOMP='$(ZSHCOMPDIR)' FISHCOMP='$(FISHCOMPDIR)'

.PHONY: all build check test test-all test-long test-slurm-matrix lint bench fuzz ptx install rpm release release-rpm packages pack source device-kit clean

all: build

# PREBUILT is a program of make release to install or package instead of building one.
build:
	$(if $(PREBUILT),install -D -m 755 '$(PREBUILT)' $(BIN),$(GO) build -buildvcs=false -ldflags '$(GO_LDFLAGS)' -o $(BIN) ./cmd/nhc-gpu)

# `make install` builds only if the program is missing or older than its sources: root may have no
# Go, and no module cache.
$(BIN): $(shell find cmd checks conf slurm go.mod go.sum -type f ! -name '*_test.go')
	$(MAKE) build

# A program needs the glibc symbol versions of the system where it is linked. A release is linked
# with the glibc of Debian 11, whose symbols are at most 2.3.3 (x86-64) or 2.17 (arm64), so that it
# starts on EL8 and on older systems. Only this target downloads files. arm64 on another processor
# needs gcc-aarch64-linux-gnu.
RELEASE_ARCHES  ?= amd64 arm64
RELEASE_DIR     ?= $(CURDIR)/dist/release
RELEASE_LDFLAGS  = -s -w -buildid= $(STAMP) "-extldflags=-Wl,--build-id=none -Wl,-z,lazy"

release: $(RELEASE_ARCHES:%=release-%)

release-amd64: triplet = x86_64-linux-gnu
release-arm64: triplet = aarch64-linux-gnu
release-%: sys = $(RELEASE_DIR)/sysroot-$*
release-%: gcc = $(if $(filter $*,$(shell $(GO) env GOHOSTARCH)),gcc,$(triplet)-gcc)
release-%:
	@command -v $(gcc) >/dev/null || { echo "make release: $(gcc) is missing (Debian: gcc-$(subst _,-,$(triplet))): install it, or name RELEASE_ARCHES without $*" >&2; exit 1; }
	rpm/sysroot/unpack.sh rpm/sysroot/$*.debs $(sys)
	$(release_build) -o $(RELEASE_DIR)/linux-$*/nhc-gpu ./cmd/nhc-gpu

# Only these headers: a cross compiler would find others, of this machine's glibc.
release_cc    = $(gcc) --sysroot=$(sys) -nostdinc -isystem $(shell $(gcc) -print-file-name=include) -isystem $(sys)/usr/include/$(triplet) -isystem $(sys)/usr/include -B$(sys)/usr/lib/$(triplet) -L$(sys)/usr/lib/$(triplet) -L$(sys)/lib/$(triplet)
release_build = GOOS=linux GOARCH=$* CC='$(release_cc)' CGO_CFLAGS='-O2 -g0 -ffile-prefix-map=$(CURDIR)=. -Wno-deprecated-declarations' \
  $(GO) build -trimpath -buildvcs=false -ldflags '$(RELEASE_LDFLAGS)'

# The files that a machine with a GPU needs for the acceptance test: docs/hardware.md.
KIT_DIR ?= $(CURDIR)/dist/device-kit

device-kit: device-kit-$(shell $(GO) env GOHOSTARCH)

device-kit-amd64: triplet = x86_64-linux-gnu
device-kit-arm64: triplet = aarch64-linux-gnu
device-kit-%: sys = $(RELEASE_DIR)/sysroot-$*
device-kit-%: gcc = $(if $(filter $*,$(shell $(GO) env GOHOSTARCH)),gcc,$(triplet)-gcc)
device-kit-%: release-%
	rm -rf $(KIT_DIR)
	install -D -t $(KIT_DIR) -m 755 $(RELEASE_DIR)/linux-$*/nhc-gpu tests/device/acceptance.sh
	$(release_cc) -O2 -Wall -Wextra -Werror -o $(KIT_DIR)/yardstick tests/device/src/yardstick.c -ldl
	$(release_build) -o $(KIT_DIR)/readings ./tests/device/readings
	@du -sh $(KIT_DIR)

# The package of the release for this machine, which installs on EL8 and newer.
release-rpm: release-$(shell $(GO) env GOARCH)
	$(MAKE) rpm PREBUILT=$(RELEASE_DIR)/linux-$(shell $(GO) env GOARCH)/nhc-gpu

check: build
	$(abspath $(BIN)) --check

# Three tiers: test is for every change, CI also runs test-all, test-long is for a
# release. Suites that cannot run here (no root, no Slurm...) are skipped with a reason.
# Many tests wait rather than compute, so more packages run than there are cores.
TESTFLAGS  ?= -p=4 -parallel=4 -timeout=30m -ldflags=-w
SOAK_RUNS  ?= 20
SOAK_LOAD  ?= 4
BUILT       = NHC_GPU_BINARY=$(abspath $(BIN)) GO='$(GO)'
FOR_TESTS   = tests/in-memory.sh env $(BUILT)
# The package with the longest waits starts first.
PACKAGES    = ./tests/slurm ./...

test:
	@tests/install-deps.sh
	@$(MAKE) build
	$(FOR_TESTS) $(GO) test -count=1 $(TESTFLAGS) $(PACKAGES)

test-all: build
	@NHC_GPU_TESTS=all tests/install-deps.sh
	$(FOR_TESTS) NHC_GPU_TESTS=all tests/tier/marked.sh All $(TESTFLAGS)

test-long: build
	$(FOR_TESTS) NHC_GPU_TESTS=long tests/tier/marked.sh Long $(TESTFLAGS)
	$(FOR_TESTS) $(GO) test -count=1 -race $(TESTFLAGS) ./checks/... ./slurm ./conf/...
	$(MAKE) fuzz
	$(FOR_TESTS) tests/soak.sh $(SOAK_RUNS) $(SOAK_LOAD)

test-slurm-matrix: build
	$(FOR_TESTS) tests/slurm/matrix.sh

lint:
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	 if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	cd rpm/tools && $(GO) vet ./...
	$$(command -v staticcheck || echo $(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)) ./...
	$$(command -v golangci-lint || echo $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)) run ./...

# Measures the cost of a run in five minutes, on an otherwise idle machine. NHC_REF names an nhc of
# LBNL NHC, with its options, to measure for comparison.
bench: build
	$(BUILT) $(GO) test -count=1 -timeout=30m -run='^TestCostPage$$' ./tests/bench -page=$(CURDIR)/docs/reference/cost.md

fuzz:
	@set -e; grep -r --include='*_test.go' '^func Fuzz' . | sed 's/:func /:/; s/(.*//' | while IFS=: read -r file target; do \
	   echo "$${file%/*} $$target"; \
	   $(GO) test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) "$${file%/*}"; \
	 done

# Compiles the embedded GPU programs from their sources; a test reports programs that do not match.
# PTX 6.0 and compute capability 7.0 are the maximum of a V100's oldest driver.
CLANG   ?= clang-14
KERNELS ?= checks/probe/cuda/kernels
PTX_FLAGS = -x cuda --cuda-device-only -nocudainc -nocudalib -O3 -S -Wall -Wextra -Xclang -target-feature -Xclang

# The programs for newer GPUs need newer PTX. clang-14 does not support FP8: it compiles that
# program for its newest GPU, and the real PTX version is edited in afterwards.
ptx:
	cd $(KERNELS) && for source in *.cu; do \
	  case $$source in gemm70.cu) for=sm_70 isa=ptx63;; gemm80.cu) for=sm_80 isa=ptx70;; gemm89.cu) for=sm_86 isa=ptx71;; *) for=sm_70 isa=ptx60;; esac; \
	  $(CLANG) $(PTX_FLAGS) +$$isa --cuda-gpu-arch=$$for -o "$${source%.cu}.ptx" "$$source" || exit 1; \
	done
	sed -i 's/^\.version 7\.1$$/.version 8.4/; s/^\.target sm_86$$/.target sm_89/' $(KERNELS)/gemm89.ptx
	cd $(KERNELS) && sha256sum *.cu *.h *.ptx >sha256sums

# rpm/files lists the installed files. A site installs the scripts for Slurm's jobs itself, see
# docs/jobs.md.
install: $(if $(PREBUILT),build,$(BIN))
	PROGRAM='$(BIN)' HOST='$(abspath $(BIN))' $(paths) rpm/files.sh install '$(DESTDIR)' $(PARTS)

# RPM allows no "-" in a version: 1.2.3-4-gabcdef0 is 1.2.3^4.gabcdef0, which is
# newer than 1.2.3 and older than 1.2.4.
RPM_VERSION = $(shell echo '$(VERSION:v%=%)' | sed 's/-/^/; s/-/./g')
RPM_TOPDIR ?= $(CURDIR)/dist/rpm

rpm:
	mkdir -p $(RPM_TOPDIR)/SOURCES
	tar --exclude-vcs --exclude=./bin --exclude=./dist --transform 's,^\.,nhc-gpu-$(RPM_VERSION),' \
	  -czf '$(RPM_TOPDIR)/SOURCES/nhc-gpu-$(RPM_VERSION).tar.gz' .
	rpmbuild -ba --define '_topdir $(RPM_TOPDIR)' --define 'nhc_version $(RPM_VERSION)' \
	  --define 'nhc_source_version $(VERSION)' $(if $(PREBUILT),--define 'nhc_prebuilt $(abspath $(PREBUILT))') rpm/nhc-gpu.spec

# The source archive has the modules and the packages of rpm/sysroot, so that `make packages` in it
# needs no network.
PACKAGE_DIR ?= $(CURDIR)/dist/packages
SOURCE       = nhc-gpu-$(VERSION:v%=%)

source:
	GO='$(GO)' rpm/source.sh '$(VERSION)' '$(COMMIT)' '$(SOURCE_DATE_EPOCH)' '$(PACKAGE_DIR)/$(SOURCE).tar.gz'

# rpm and deb for RELEASE_ARCHES, an SBOM for each program, and SHA256SUMS. They are always built
# from the source archive: from one archive every build makes the same bytes. SIGN_KEY is a secret
# key of OpenPGP in a file; NFPM_PASSPHRASE in the environment has its passphrase. arm64 on another
# processor takes the completions from the program of this one.
ifeq ($(wildcard rpm/source.mk),)
packages: source
	rm -rf '$(PACKAGE_DIR)/build'
	mkdir -p '$(PACKAGE_DIR)/build'
	tar -C '$(PACKAGE_DIR)/build' -xzf '$(PACKAGE_DIR)/$(SOURCE).tar.gz'
	$(MAKE) -C '$(PACKAGE_DIR)/build/$(SOURCE)' packages PACKAGE_DIR='$(PACKAGE_DIR)' RELEASE_DIR='$(PACKAGE_DIR)/build/$(SOURCE)/dist/release'
	rm -rf '$(PACKAGE_DIR)/build'
else
packages: $(sort $(RELEASE_ARCHES:%=release-%) release-$(shell $(GO) env GOHOSTARCH))
	cd rpm/tools && export CGO_ENABLED=0 && $(GO) build -trimpath -o '$(RELEASE_DIR)/nfpm' github.com/goreleaser/nfpm/v2/cmd/nfpm && $(GO) build -trimpath -o '$(RELEASE_DIR)/sbom' ./sbom
	$(MAKE) pack

# The packages of the programs that are there.
pack:
	SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' ARCHES='$(RELEASE_ARCHES)' HOST='$(RELEASE_DIR)/linux-$(shell $(GO) env GOHOSTARCH)/nhc-gpu' RELEASE_DIR='$(RELEASE_DIR)' SIGN_KEY='$(SIGN_KEY)' \
	  VERSION='$(VERSION:v%=%)' COMMIT='$(COMMIT)' $(paths) rpm/package.sh '$(PACKAGE_DIR)'
endif

clean:
	rm -rf bin dist tests/slurm/_artifacts
