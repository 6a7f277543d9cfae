package lbnl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// dimms returns the output of mcelog for memory modules with the given numbers of corrected and
// uncorrected errors.
func dimms(counts ...[2]string) string {
	var b strings.Builder
	b.WriteString("Memory errors\n")
	for i, n := range counts {
		fmt.Fprintf(&b, "SOCKET 0 CHANNEL %d DIMM 0\ncorrected memory errors:\n\t325 total\n\t%s in 24h\n"+
			"uncorrected memory errors:\n\t0 total\n\t%s in 24h\n", i, n[0], n[1])
	}
	return b.String()
}

// onMCELog returns a scenario where mcelog prints a text.
func onMCELog(name, text string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{
		Name: name, Want: want, Tools: []string{"sh", "cat"}, Vars: map[string]string{"HOSTNAME": "n1"},
		Files: map[string]string{"bin/mcelog": "#!/bin/sh\n[ \"$*\" = --client ] && cat {root}/text\nexit 1\n", "text": text},
	}
}

// mceLogged returns a failure after its line of the log.
func mceLogged(code string, f checks.Finding) []checks.Finding {
	return []checks.Finding{{Code: code, Severity: checks.Warn, Device: f.Device, Message: f.Message}, f}
}

func tooManyErrors(code, dimm, count, kind, limit string) []checks.Finding {
	return mceLogged("hw.mce.report", checks.Finding{
		Code: code, Severity: checks.Fail, Device: checks.Device{Kind: "dimm", Name: dimm}, Remedy: checks.ReseatOrRMA,
		Want: "at most " + limit + " in 24 hours", Got: count,
		Message: fmt.Sprintf("check_hw_mcelog:  MCEs detected - %s %s memory errors detected (limit of %s/day).", count, kind, limit)})
}

func TestHWMCELog(t *testing.T) { checktest.Run(t, "check_hw_mcelog") }

var _ = checktest.Table("check_hw_mcelog", func(string) []checktest.Scenario {
	const corrected, uncorrected = "hw.mce.corrected", "hw.mce.uncorrected"
	const first, sixth = "SOCKET 0 CHANNEL 0 DIMM 0", "SOCKET 0 CHANNEL 5 DIMM 0"
	noDaemonRuns := []checks.Finding{
		{Code: "hw.mce.daemon", Severity: checks.Warn, Message: "check_hw_mcelog:  No mcelog daemon running on n1"},
		{Code: "hw.mce.daemon", Severity: checks.Warn, Syslog: true, Message: "check_hw_mcelog:  No mcelog daemon running on n1"},
	}
	good := [2]string{"9", "0"}
	limits := func(c, u string) map[string]string {
		return map[string]string{"MCELOG_MAX_CORRECTED_RATE": c, "MCELOG_MAX_UNCORRECTED_RATE": u}
	}
	noLimits := limits("", "")
	noLimits["HOSTNAME"] = "n1"
	eight := [][2]string{good, good, good, good, good, {"50", "0"}, good, good}
	return []checktest.Scenario{
		onMCELog("no output, whatever the status", "").OrTable(map[string]any{}),
		onMCELog("as many as allowed", dimms(good, good)),
		onMCELog("text without counters", "some text\nwithout counters\n"),
		onMCELog("own limits", dimms([2]string{"3", "1"})).UnderVars(limits("3.5", "1")),
		onMCELog("no limits, no output", "\n\n").UnderVars(limits("", "")),
		onMCELog("no daemon", "mcelog: client connect: Connection refused\n", noDaemonRuns...),
		onMCELog("a daemon that was stopped", "mcelog: client connect: No such file or directory\n", noDaemonRuns...),
		onMCELog("a daemon that was stopped, no limits", "mcelog: client connect: No such file or directory\n", noDaemonRuns...).UnderVars(noLimits),
		onMCELog("an AMD processor", "mcelog: ERROR: AMD Processor family 25: mcelog does not support this processor.  Please use the edac_mce_amd module instead.\n"+
			"CPU is unsupported\n", noDaemonRuns...),
		onMCELog("own command", "").UnderVars(map[string]string{"MCELOG": "cat", "MCELOG_ARGS": "{root}/text /dev/null"}),
		onMCELog("no command", dimms([2]string{"99", "9"})).UnderVars(map[string]string{"MCELOG": "", "MCELOG_ARGS": ""}),

		onMCELog("too many corrected", dimms([2]string{"10", "0"}), tooManyErrors(corrected, first, "10", "corrected", "9")...),
		onMCELog("uncorrected", dimms([2]string{"0", "1"}), tooManyErrors(uncorrected, first, "1", "UNcorrected", "0")...),
		onMCELog("one of eight", dimms(eight...), tooManyErrors(corrected, sixth, "50", "corrected", "9")...),
		onMCELog("own limit", dimms([2]string{"3", "0"}), tooManyErrors(corrected, first, "3", "corrected", "2.5")...).UnderVars(limits("2.5", "0")),
		onMCELog("no limit: any output fails", "Hardware event.\n\n",
			checks.Finding{Code: "hw.mce.report", Severity: checks.Warn, Message: "check_hw_mcelog:  MCEs detected:  Hardware event."},
			checks.Finding{Code: "hw.mce.any", Severity: checks.Fail, Message: "check_hw_mcelog:  MCEs detected in log.", Want: "no output", Got: "Hardware event."}).
			UnderVars(limits("", "0")),
		onMCELog("limit is no number", "", cmdValue("check_hw_mcelog", "MCELOG_MAX_UNCORRECTED_RATE", "none", "a number")).UnderVars(limits("9", "none")),

		{Name: "no mcelog", Want: []checks.Finding{{Code: "hw.mce.absent", Severity: checks.Skip, Message: "check_hw_mcelog:  run mcelog: file does not exist"}}},
		{Name: "no mcelog and no limits", Broken: true, Vars: limits("", ""), Want: checks.Unreadable(fmt.Errorf("run mcelog: file does not exist"))},
		onMCELog("errors that are no numbers", dimms([2]string{"\xff", "many"})).OnBroken(),
		onMCELog("too much output", strings.Repeat("x", maxOutput+1),
			checks.Unreadable(fmt.Errorf("output of mcelog --client is longer than 4194304 bytes"))...).OnBroken(),
	}
})
