package checks

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCodesOfDevices: the codes of lost devices, and of numbers of them, have words.
func TestCodesOfDevices(t *testing.T) {
	t.Parallel()
	for _, list := range []map[string]bool{losses, counts} {
		for code := range list {
			if _, ok := CodeRows().Words[code]; !ok {
				t.Errorf("%s has no row in codes.toml", code)
			}
		}
	}
}

// TestGoneIsLost: a device that is gone is lost; the reason names the device, not the count.
func TestGoneIsLost(t *testing.T) {
	t.Parallel()
	for code := range CodeRows().Words {
		if strings.HasSuffix(code, ".gone") && !IsLoss(code) {
			t.Errorf("%s is no loss", code)
		}
	}
}

// TestWordsAreClear rejects texts that are too long, and texts that codes of different checks
// share: "gpu.temp.limit" and "nvme.temp" may share one because their devices differ.
func TestWordsAreClear(t *testing.T) {
	t.Parallel()
	plain := regexp.MustCompile(`^[A-Za-z0-9/&-]+( ([A-Za-z0-9/_&-]+|\*))*$`)
	about := func(code string) string { // "gpu.ecc"
		parts := strings.SplitN(code, ".", 3)
		return strings.Join(parts[:2], ".")
	}
	by := map[string]string{}
	shared := map[string]bool{ // the same fault, found by several checks
		"memory in use": true, "no state file": true, "unreadable": true, "throttled": true, "no cuBLASLt": true, "not compared": true, "types skipped": true,
		"all wrong": true, "wrong result": true, "slow memory": true, "not measured": true, "link down": true, "no time left": true,
		"memory held": true, "slow NCCL": true, "slow overlap": true, "PCIe width": true, "left out": true, "lost": true, "no perftest": true, "no log file": true, "not tested": true,
	}
	for _, code := range slices.Sorted(maps.Keys(CodeRows().Words)) {
		words := CodeRows().Words[code]
		if longest := strings.ReplaceAll(words, "*", "719"); len(longest) > maxWords || !plain.MatchString(words) {
			t.Errorf("%s: words %q: want at most %d plain characters", code, words, maxWords)
		}
		class, _, _ := strings.Cut(code, ".")
		key := class + " " + words
		if other := by[key]; other != "" && about(other) != about(code) && !shared[words] {
			t.Errorf("%s and %s have the same words, %q", other, code, words)
		}
		by[key] = code
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"gpu.recovery.lost": "lost", "gpu.xid.79": "lost", "gpu.xid.119": "Xid 119", "gpu.xid.ledger": "no state file", "gpu.sxid.12028": "SXid 12028",
		"cuda.error": "CUDA error", "cuda.error.719": "CUDA error 719", "dcgm.fr.15": "DCGM error 15", "dcgm.fr.unknown": "DCGM error",
		"ib.errors.symbol_error": "symbol errors", "ib.errors.rnr_nak_retry_err": "port errors",
		"gpu.nobody_wrote.a_row_for_this": "a row for this",
	} {
		if got := Words(code); got != want {
			t.Errorf("Words(%q) = %q, want %q", code, got, want)
		}
	}
}

func TestRemedyOf(t *testing.T) {
	t.Parallel()
	if got := RemedyOf(Finding{Code: "gpu.count", Severity: Fail, Remedy: RebootNode}); got != RebootNode {
		t.Errorf("a finding with a remedy: %q, want its own", got)
	}
	if got := RemedyOf(Finding{Code: "gpu.count", Severity: Fail}); got != PowerCycle {
		t.Errorf("gpu.count: remedy %q, want that of codes.toml", got)
	}
	if got := RemedyOf(Finding{Code: "gpu.count", Severity: Warn}) + RemedyOf(Finding{Code: "gpu.temp.limit", Severity: Fail}); got != NoRemedy {
		t.Errorf("a warning, and a code with none, have the remedy %q", got)
	}
}

// TestRemediesOfTables refuses a remedy in a data file that is not in the list.
func TestRemediesOfTables(t *testing.T) {
	t.Parallel()
	is := regexp.MustCompile(`remedy\s*=\s*"([^"]*)"`)
	err := filepath.WalkDir(".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".toml" {
			return err
		}
		data, err := os.ReadFile(file)
		for _, m := range is.FindAllStringSubmatch(string(data), -1) {
			if _, known := remedies[Remedy(m[1])]; !known && m[1] != "none" {
				t.Errorf("%s: remedy %q is not in the list", file, m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
