package xid

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// Every Xid with a draining class drains the node, on one GPU of eight: the
// self-test shows that, also for a changed row.
var _ = checktest.Table("check_gpu_xid", func(string) (list []checktest.Scenario) {
	ends := map[checks.XidClass]string{checks.XidReset: "a GPU reset or a reboot clears it", checks.XidReboot: "a reboot clears it"}
	table := xidTable()
	for _, code := range slices.Sorted(maps.Keys(table)) {
		row := table[code]
		if !row.Class.Drains() {
			continue
		}
		end := ends[row.Class]
		if row.Cure != "" {
			end = row.Cure
		}
		if row.Class == checks.XidHold {
			end = fmt.Sprintf("nhc-gpu clear 0000:c1:00.0 %d clears it", code)
		}
		list = append(list, checktest.Scenario{
			Name:  fmt.Sprintf("%s: Xid %d, %s", row.Class, code, row.Name),
			Files: checktest.XidNode(fmt.Sprintf("90000 %s%d, x", checktest.OnC1, code)),
			Want: []checks.Finding{xidFinding(checks.Fail, code, row.Remedy, once90k+"x",
				fmt.Sprintf("Xid %d (%s), since %s: %s", code, row.Means, at90k, end))},
		})
	}
	return list
})
