package checks

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// codes.toml holds a short text for each finding code.

//go:embed codes.toml
var codesFile string

type codeTable struct {
	Words  map[string]string `toml:"words"`
	Remedy map[string]Remedy `toml:"remedy"`
	Same   map[string]string `toml:"same"`
}

// CodeRows reads codes.toml.
var CodeRows = sync.OnceValue(func() (t codeTable) {
	if _, err := toml.Decode(codesFile, &t); err != nil {
		panic("checks: codes.toml: " + err.Error()) // TestCodes
	}
	return t
})

// maxWords is the greatest length of the short text, in characters.
const maxWords = 14

// Words returns the short text of a code, at most maxWords characters: "lost", "Xid 79". A test
// ensures that every code has a row; if one has not, Words returns the code's last part.
func Words(code string) string {
	if words, ok := CodeRows().Words[code]; ok {
		return words
	}
	for family := code; ; {
		i := strings.LastIndexByte(family, '.')
		if i < 0 {
			break
		}
		family = family[:i]
		if words, ok := CodeRows().Words[family+".*"]; ok {
			return shorten(strings.ReplaceAll(words, "*", code[i+1:]))
		}
	}
	return shorten(strings.ReplaceAll(code[strings.LastIndexByte(code, '.')+1:], "_", " "))
}

func shorten(words string) string { return words[:min(len(words), maxWords)] }

// lbnl holds the checks of LBNL NHC and of its branches. Sites search logs and reasons for
// their texts, so these texts must stay unchanged.
var lbnl = makeSet(
	"check_all_fs_free check_all_fs_ifree check_all_fs_inodes check_all_fs_iused check_all_fs_size check_all_fs_used " +
		"check_cmd_dmesg check_cmd_output check_cmd_status check_dmi_data_match check_dmi_raw_data_match " +
		"check_file_contents check_file_stat check_file_test check_fs_free check_fs_ifree check_fs_inodes check_fs_iused " +
		"check_fs_mount check_fs_mount_ro check_fs_mount_rw check_fs_size check_fs_used " +
		"check_hw_cpuinfo check_hw_eth check_hw_gm check_hw_ib check_hw_mcelog check_hw_mem check_hw_mem_free " +
		"check_hw_physmem check_hw_physmem_free check_hw_swap check_hw_swap_free " +
		"check_moab_rm check_moab_sched check_moab_torque check_net_ping check_net_socket " +
		"check_nv_healthmon check_nvsmi_healthmon " +
		"check_ps_blacklist check_ps_cpu check_ps_daemon check_ps_kswapd check_ps_loadavg check_ps_mem check_ps_physmem " +
		"check_ps_service check_ps_time check_ps_unauth_users check_ps_userproc_lineage")

func makeSet(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// OfLBNL reports whether a check is one of LBNL NHC's.
func OfLBNL(name string) bool { return lbnl[name] }

// losses are the codes of devices that no longer answer; other faults of such a device are
// consequences. counts are the codes of device counts, which are too small in that case.
var (
	losses = makeSet("gpu.recovery.lost gpu.xid.79 gpu.xid.110 gpu.count.gone gpu.count.nvml ib.pcie.gone ib.ports.gone pcie.gone pcie.missing nvme.gone nvme.missing nvme.state nvme.log.dead eth.missing")
	counts = makeSet("gpu.count ib.count ib.ports.count pcie.count nvme.count")
)

// IsLoss reports whether a code is that of a lost device.
func IsLoss(code string) bool { return losses[code] }

// IsCountOf reports whether code is a device count that is too small when a device with the
// code lost is lost.
func IsCountOf(code, lost string) bool {
	class, _, _ := strings.Cut(code, ".")
	return counts[code] && (class == "pcie" || strings.HasPrefix(lost, class+"."))
}

// FaultOf returns the code that represents a fault with several codes: a lost GPU also
// appears in the kernel log.
func FaultOf(code string) string {
	if same, ok := CodeRows().Same[code]; ok {
		return same
	}
	return code
}

// Codes returns the codes of all findings that have a fixed name, sorted.
func Codes() []string {
	codes := map[string]string{}
	for code := range CodeRows().Words {
		if !strings.Contains(code, "*") && WhatToDo(code) != "" {
			codes[code] = ""
		}
	}
	for _, name := range Names() {
		info, _ := Lookup(name)
		for code := range info.Advice() {
			codes[code] = ""
		}
	}
	return slices.Sorted(maps.Keys(codes))
}

// KnownCode reports whether a name is the code of a finding, or the beginning of codes up to a dot.
func KnownCode(name string) bool {
	below := func(code string) bool { return strings.HasPrefix(code, name+".") }
	if slices.Contains(Codes(), name) || slices.ContainsFunc(Codes(), below) || WhatToDo(name) != "" {
		return true
	}
	for code := range CodeRows().Words {
		if family, ok := strings.CutSuffix(code, "*"); ok && (below(code) || strings.HasPrefix(name, family)) {
			return true
		}
	}
	return slices.ContainsFunc(MessageTable().Rows, func(r MessageRow) bool { return r.Code == name || below(r.Code) })
}

// RemedyOf returns the remedy of a failing finding: its own, or else that of its code.
func RemedyOf(f Finding) Remedy {
	if f.Remedy != NoRemedy || f.Severity != Fail {
		return f.Remedy
	}
	if r := CodeRows().Remedy[f.Code]; r != "none" {
		return r
	}
	return NoRemedy
}
