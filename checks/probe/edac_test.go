package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestMemoryControllers(t *testing.T) {
	t.Parallel()
	read := func(files map[string]string) (list []MemoryController, err error) {
		all := map[string]string{}
		for file, content := range files {
			all["sys/devices/system/edac/mc/"+file] = content
		}
		return ReadMemoryControllers(NewHost(probetest.Tree(t, all)))
	}
	count := func(n uint64) ErrorCount { return ErrorCount{N: n, Known: true} }
	got, err := read(map[string]string{
		"power/control": "auto\n", "mc10/ue_count": "0\n", "mc10/ce_count": "0\n", "mc10/mc_name": "ten\n",
		"mc2/mc_name": "a\x01b\n", "mc2/ue_count": "-1\n", "mc2/ce_count": "4294967295\n",
		"mc2/rank10/dimm_ue_count": "0\n", "mc2/rank9/dimm_ue_count": "1\n", "mc2/rank9/dimm_ce_count": "2\n", "mc2/rank9/dimm_label": "", "mc2/rank9/dimm_location": "csrow 1 channel 3 \n",
		"mc2/rank11/size": "1\n", "mc2/csrow0/ue_count": "7\n",
	})
	want := []MemoryController{
		{Name: "mc2", Driver: "a?b", Uncorrected: count(1<<32 - 1), Corrected: count(1<<32 - 1), Modules: []MemoryModule{
			{Name: "rank9", Location: "csrow 1 channel 3", Uncorrected: count(1), Corrected: count(2)}, {Name: "rank10", Uncorrected: count(0)},
		}},
		{Name: "mc10", Driver: "ten", Uncorrected: count(0), Corrected: count(0)},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := read(nil); got != nil || err != nil {
		t.Errorf("without a driver: %v, %v", got, err)
	}
	for content, want := range map[string]string{
		"":            "parse /sys/devices/system/edac/mc/mc0/ue_count: invalid argument",
		"-2147483649": "parse /sys/devices/system/edac/mc/mc0/ue_count: invalid argument",
		"4294967296":  "parse /sys/devices/system/edac/mc/mc0/ue_count: invalid argument",
	} {
		got, err := read(map[string]string{"mc0/ue_count": content})
		if err != nil || len(got) != 1 || probetest.Message(got[0].Uncorrected.Err) != want || probetest.Message(got[0].Corrected.Err) != "read /sys/devices/system/edac/mc/mc0/ce_count: file does not exist" {
			t.Errorf("%q: %v, %+v", content, err, got)
		}
	}
}
