package xid

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Since returns the errors that the kernel has logged since a mark in the same boot, the oldest first,
// and the end of the log; no errors without a mark. It reads the record of check_gpu_xid and the log,
// and writes nothing.
func Since(env *checks.Env, mark checks.LogMark) (seen []checks.XidSeen, end checks.LogMark, err error) {
	ledger := *probe.Kept[*xidLedger](env.Host, "record of Xids") // of check_gpu_xid in this run
	if ledger == nil {
		ledger, _, _ = recallXids(env)
		if _, _, err := recordXids(env, ledger); err != nil {
			return nil, checks.LogMark{}, err
		}
	}
	end = checks.LogMark{Boot: ledger.Boot, Next: ledger.Cursor}
	policy, _ := readXidPolicy(env) // check_gpu_xid reports an unusable file
	j := &xidJudge{policy: policy, ledger: ledger}
	for i := range ledger.Events {
		x := &ledger.Events[i]
		if mark.Boot == "" || x.Boot != mark.Boot || x.Seq < mark.Next {
			continue
		}
		row := j.findRow(x.Key)
		class, _ := j.classify(x, &row)
		seen = append(seen, checks.XidSeen{
			Code: x.Key.Code, Switch: x.Key.Switch, PCI: x.GPU, Name: row.Means, Class: class, Before: x.From < mark.Next, Lines: x.Lines,
			First: time.Unix(x.First, 0).UTC(), Last: time.Unix(x.Last, 0).UTC(), PID: x.PID, By: x.Name, Text: x.Text,
		})
	}
	slices.SortStableFunc(seen, func(a, b checks.XidSeen) int { return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Code, b.Code)) })
	return seen, end, nil
}

// Seen returns the errors of a GPU that the record of check_gpu_xid and the kernel's log have, also of
// earlier boots. It writes nothing.
func Seen(env *checks.Env, gpu checks.Device) (seen []checks.XidSeen) {
	ledger, _, _ := recallXids(env)
	_, _, _ = recordXids(env, ledger) // without the log, the record remains
	for i := range ledger.Events {
		x := &ledger.Events[i]
		if x.GPU != gpu.PCI && (x.UUID == "" || x.UUID != gpu.UUID) || x.UUID != "" && gpu.UUID != "" && x.UUID != gpu.UUID {
			continue
		}
		seen = append(seen, checks.XidSeen{
			Code: x.Key.Code, Switch: x.Key.Switch, PCI: x.GPU, Lines: x.Lines, First: time.Unix(x.First, 0).UTC(), Last: time.Unix(x.Last, 0).UTC(), Text: x.Text,
		})
	}
	return seen
}

// SwitchErrors returns the SXid errors of this boot that need action, to explain a failure of the
// fabric: "SXid 20009 of 0000:05:00.0". check_gpu_xid reports errors of the reading.
func SwitchErrors(env *checks.Env) (list []string) {
	boot, err := probe.BootID(env.Host)
	if err != nil {
		return nil
	}
	env.At("read the kernel's log")
	seen, _, err := Since(env, checks.LogMark{Boot: boot})
	if err != nil {
		return nil
	}
	for _, x := range seen {
		if name := fmt.Sprintf("%s of %s", x, x.PCI); x.Switch && x.Class != checks.XidIgnore && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}
