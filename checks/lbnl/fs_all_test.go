package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// commonAll returns the scenarios that the checks of all file systems of a type share; limit is a
// limit that passes.
func commonAll(one, what, limit, want string) []checktest.Scenario {
	return []checktest.Scenario{
		onUsage("no file system of that type", checktest.Of("btrfs", "1")),
		onUsage("no arguments", checktest.Of()),
		onUsage("no limit", checktest.Of("tmpfs")),
		onUsage("a hidden file system is not checked", checktest.Of("hidden", limit)),
		onUsage("pseudo file systems", checktest.Of("proc", limit), pseudo(one, "/s/pseudo"), pseudo(one, "/s/hid")),
		onUsage("malformed, reported once", checktest.Of("tmpfs", "1.5.2G"), cmdValue(one, what, "1.5.2G", want)),
		onUsage("malformed, no file system", checktest.Of("btrfs", "ten"), cmdValue(one, what, "ten", want)),
		onUsage("does not answer", checktest.Of("nfs", limit), noAnswer("statfs /s/dead: no such file or directory")).OnBroken(),
		{Name: "no mount table", Broken: true, Words: checktest.Of("tmpfs", limit),
			Want: []checks.Finding{noAnswer("read /proc/mounts: no such file or directory")}},
	}
}

func TestAllFSInodes(t *testing.T) { checktest.Run(t, "check_all_fs_inodes") }

var _ = checktest.Table("check_all_fs_inodes", func(string) []checktest.Scenario {
	return append(commonAll("check_fs_inodes", "minimum", "1", wantInodes),
		onUsage("all of them", checktest.Of("tmpfs", "10", "5M")).OrTable(map[string]any{"type": "tmpfs", "min": "10", "max": "5M"}),
		onUsage("one of five", checktest.Of("tmpfs", "11"),
			usageFail("fs.inodes.small", "/s/half", "inodes 10 less than minimum of 11", "at least 11", "10")),
		onUsage("two of five", checktest.Of("tmpfs", "", "1M"),
			usageFail("fs.inodes.large", "/s/big", "inodes 5000000 exceeds maximum of 1M", "at most 1M", "5000000"),
			usageFail("fs.inodes.large", "/s/g", "inodes 1500000 exceeds maximum of 1M", "at most 1M", "1500000")),
	)
})

func TestAllFSUsed(t *testing.T) { checktest.Run(t, "check_all_fs_used") }

var _ = checktest.Table("check_all_fs_used", func(string) []checktest.Scenario {
	return append(commonAll("check_fs_used", "threshold", "100%", wantSize+wantPercent),
		onUsage("all of them", checktest.Of("tmpfs", "51%")).OrTable(map[string]any{"type": "tmpfs", "limit": "51%"}),
		onUsage("one of five", checktest.Of("tmpfs", "50%"),
			usageFail("fs.used", "/s/half", "is 50% full (5MB), threshold is 50%", "less than 50%", "50%")),
	)
})

func TestAllFSIused(t *testing.T) { checktest.Run(t, "check_all_fs_iused") }

var _ = checktest.Table("check_all_fs_iused", func(string) []checktest.Scenario {
	return append(commonAll("check_fs_iused", "threshold", "1M", wantInodes+wantPercent),
		onUsage("all of them", checktest.Of("tmpfs", "6")).OrTable(map[string]any{"type": "tmpfs", "limit": int64(6)}),
		onUsage("one of five", checktest.Of("tmpfs", "5"),
			usageFail("fs.iused", "/s/half", "has 5 inodes used, threshold is 5", "less than 5", "5")),
	)
})

func TestAllFSIfree(t *testing.T) { checktest.Run(t, "check_all_fs_ifree") }

var _ = checktest.Table("check_all_fs_ifree", func(string) []checktest.Scenario {
	return append(commonAll("check_fs_ifree", "minimum", "0", wantInodes+wantPercent),
		onUsage("all of them", checktest.Of("tmpfs", "5")).OrTable(map[string]any{"type": "tmpfs", "limit": int64(5)}),
		onUsage("one of five", checktest.Of("tmpfs", "98%"),
			usageFail("fs.ifree", "/s/half", "has only 50% of inodes free (5), minimum is 98%", "at least 98%", "50%")),
	)
})
