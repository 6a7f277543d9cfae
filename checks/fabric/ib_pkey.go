package fabric

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibPKey checks that each port of InfiniBand that carries jobs' traffic, or each DEVICE
// that is named, is in every partition PKEY, a number such as 0x8001. The highest bit
// asks for full membership: 0x8001 has to be there as such, while 0x0001 is content
// with a full or a limited member. -i wants the one PKEY at that index of the table, as
// programs do that are told an index (NCCL_IB_PKEY). Without PKEY a port without any
// fails, and one that is not in the default partition (0xffff, or 0x7fff of a limited
// member) is warned of: by it ports reach the subnet manager. Only ports that are up
// have a table worth looking at: check_ib_ports judges the others.
//
//	gpu* || check_ib_pkey 0x8001
//	gpu* || check_ib_pkey -i 1 0x8001
type ibPKey struct {
	Index   int      `opt:"i" toml:"index"`   // where in the table the PKEY has to be
	Devices []string `opt:"d" toml:"devices"` // ports; may be given more than once
	Keys    []string `arg:"*" toml:"pkeys"`   // partitions
}

const ibPKeyName = "check_ib_pkey"

// defaultPartition is the key of the partition that every port should be in:
// InfiniBand Architecture Specification, 10.9.1.2.
const defaultPartition = 0x7fff

func init() {
	const manager = "See the subnet manager's partitions (partitions.conf of opensm, UFM's GUI): is the port's GUID a member, with the right membership? smpquery pkeys LID shows what the port has."
	checks.Register(checks.Info{
		Name:    ibPKeyName,
		Usage:   "[-i INDEX] [-d DEVICE]... [PKEY...]",
		Summary: "ports of InfiniBand are in their partitions",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibPKey{Index: -1} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.inactive":     InactiveDo,
				"ib.pkey.missing": manager,
				"ib.pkey.index":   manager + " The order in the table is the manager's; a restart of it may change it. Prefer programs that look for the key.",
				"ib.pkey.empty":   "The subnet manager has written no partition into the port: is it up, does it know the port's GUID? Without one the port reaches nobody.",
				"ib.pkey.default": manager + " If no default partition is meant name the keys that are: check_ib_pkey 0x8001.",
			}
		},
	})
}

// InactiveDo is the advice where no port is up.
const InactiveDo = "No port is up, so that there is nothing to look at: check_ib_ports says why."

func (c *ibPKey) Run(_ context.Context, env *checks.Env) []checks.Finding {
	wants, bad := c.keys()
	if bad != nil {
		return []checks.Finding{*bad}
	}
	f, findings := Ask(env, ibPKeyName)
	if f == nil {
		return findings
	}
	ports, findings := f.Judged(c.Devices, layerIB)
	ports, findings = AskUp(f, ports, findings)
	for _, p := range ports {
		findings = append(findings, c.judge(f, p, wants)...)
	}
	return findings
}

// keys are those that the line asks for.
func (c *ibPKey) keys() (wants []rdma.PKey, bad *checks.Finding) {
	for _, word := range c.Keys {
		n, err := strconv.ParseUint(word, 0, 16)
		if err != nil || n&0x7fff == 0 {
			return nil, new(checks.BadWord(ibPKeyName, "partition", word, "a number such as 0x8001"))
		}
		wants = append(wants, rdma.PKey{Key: uint16(n)})
	}
	if c.Index >= 0 && len(wants) != 1 {
		return nil, new(checks.BadWord(ibPKeyName, "partitions", strings.Join(c.Keys, " "), "one for an index"))
	}
	return wants, nil
}

// AskUp are the ports that are up; if none is the finding says so, and if there is none.
func AskUp(f *Fabric, ports []*Port, findings []checks.Finding) ([]*Port, []checks.Finding) {
	list := slices.DeleteFunc(slices.Clone(ports), func(p *Port) bool { return p.State != checks.IBActive })
	switch {
	case len(ports)+len(findings) == 0: // those that are named are of another layer
		findings = []checks.Finding{checks.Finding{Code: "ib.left", Severity: checks.Skip}.Describe(f.Check, "no port that is named is of the kind that the check is about")}
	case len(list) == 0 && len(ports) > 0:
		severity := checks.Unknown
		if !slices.ContainsFunc(ports, func(p *Port) bool { return !f.isStarting(p) }) {
			severity = checks.Skip
		}
		findings = append(findings, checks.Finding{Code: "ib.inactive", Severity: severity, Device: checks.Device{Kind: "ports"}}.Describe(f.Check, "no port is %s", checks.IBActive))
	}
	return list, findings
}

// judge judges the table of a port. It reads no more of it than it must.
func (c *ibPKey) judge(f *Fabric, p *Port, wants []rdma.PKey) []checks.Finding {
	f.env.At("read /sys/class/infiniband/%s/ports/%s/pkeys", p.Device, p.Port)
	missing := slices.Clone(wants)
	if len(wants) == 0 {
		missing = []rdma.PKey{{Key: defaultPartition}}
	}
	list, err := rdma.IBPKeys(f.env.Host, p.Device, p.Port, func(k rdma.PKey) bool {
		missing = slices.DeleteFunc(missing, func(want rdma.PKey) bool { return fulfils(k, want) })
		return len(missing) == 0 && (c.Index < 0 || k.Index >= c.Index)
	})
	var has []string
	at := rdma.PKey{}
	for _, k := range list {
		has = append(has, fmt.Sprintf("0x%04x", k.Key))
		if k.Index == c.Index {
			at = k
		}
	}
	of := checks.Finding{Code: "ib.pkey.missing", Severity: checks.Fail, Remedy: checks.CheckFabric, Got: strings.Join(has, " ")}
	switch {
	case err != nil && (len(missing) > 0 || c.Index >= 0 && !fulfils(at, wants[0])):
		return []checks.Finding{f.Unknown(p.Subject(), err)}
	case len(list) == 0:
		of.Code, of.Want, of.Got = "ib.pkey.empty", "a partition", "none"
		return []checks.Finding{of.Report(f.Check, p.Subject(), "table of partitions")}
	case len(missing) > 0 && len(wants) == 0:
		of.Code, of.Severity, of.Want = "ib.pkey.default", checks.Warn, "0x7fff or 0xffff"
		return []checks.Finding{of.Report(f.Check, p.Subject(), "not in the default partition")}
	case len(missing) > 0:
		var keys []string
		for _, k := range missing {
			keys = append(keys, fmt.Sprintf("0x%04x", k.Key))
		}
		of.Want = strings.Join(keys, " ")
		return []checks.Finding{of.Report(f.Check, p.Subject(), "partitions")}
	case c.Index >= 0 && !fulfils(at, wants[0]):
		of.Code, of.Want, of.Got = "ib.pkey.index", fmt.Sprintf("0x%04x", wants[0].Key), fmt.Sprintf("0x%04x", at.Key)
		return []checks.Finding{of.Report(f.Check, p.Subject(), "partition at index %d", c.Index)}
	}
	return nil
}

// fulfils says whether an entry is what is asked for: a full member of the partition,
// or any if that is asked for.
func fulfils(k, want rdma.PKey) bool {
	return k.Partition() == want.Partition() && (k.Full() || !want.Full())
}
