package checks

import (
	"fmt"
	"maps"
	"slices"
)

// Every Xid whose row drains a node does so, on one GPU of eight: a site sees
// that in the self-test, and a row that is changed shows there, too.
var _ = table("check_gpu_xid", func(string) (list []scenario) {
	ends := map[XidClass]string{XidReset: "a GPU reset or a new boot clears it", XidReboot: "a new boot clears it"}
	table := xidTable()
	for _, code := range slices.Sorted(maps.Keys(table)) {
		row := table[code]
		if !row.Class.drains() {
			continue
		}
		end := ends[row.Class]
		if row.Cure != "" {
			end = row.Cure
		}
		if row.Class == XidHold {
			end = fmt.Sprintf("nhc-gpu clear 0000:c1:00.0 %d clears it", code)
		}
		list = append(list, scenario{
			name:  fmt.Sprintf("%s: Xid %d, %s", row.Class, code, row.Name),
			files: xidNode(fmt.Sprintf("90000 %s%d, x", onC1, code)),
			want: []Finding{xidFinding(Fail, code, row.Remedy, once90k+"x",
				fmt.Sprintf("Xid %d (%s), since %s: %s", code, row.Means, at90k, end))},
		})
	}
	return list
})
