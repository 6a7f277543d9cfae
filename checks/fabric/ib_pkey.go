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

// ibPKey checks that each active InfiniBand port that carries jobs' traffic, or each -d DEVICE,
// is in every partition PKEY, a number such as 0x8001. The highest bit requires full membership:
// 0x8001 needs a full member, 0x0001 accepts a full or a limited one. -i INDEX requires the one
// PKEY at that index of the table, for programs that use a fixed index (NCCL_IB_PKEY). Without
// PKEY a port without any partition fails, and a port outside the default partition (0xffff, or
// 0x7fff for a limited member) warns: ports reach the subnet manager through it. Ports that are
// not active are not checked: see check_ib_ports.
//
//	gpu* || check_ib_pkey 0x8001
//	gpu* || check_ib_pkey -i 1 0x8001
type ibPKey struct {
	Index   int      `opt:"i" toml:"index" in:"-1:65535"` // index of the PKEY in the table; -1: any
	Devices []string `opt:"d" toml:"devices"`             // ports; repeatable; none: those that carry jobs' traffic
	Keys    []string `arg:"*" toml:"pkeys"`               // partitions
}

const ibPKeyName = "check_ib_pkey"

// defaultPartition is the key of the partition of every port: InfiniBand Architecture
// Specification, 10.9.1.2.
const defaultPartition = 0x7fff

func init() {
	const manager = "If no port has this partition correct the line. Otherwise see the subnet manager's partitions (partitions.conf of opensm, UFM's GUI): is the port's GUID a member, with the right membership? smpquery pkeys LID shows the port's partitions."
	checks.Register(checks.Info{
		Name:    ibPKeyName,
		Usage:   "[-i INDEX] [-d DEVICE]... [PKEY...]",
		Summary: "InfiniBand ports are in their partitions",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibPKey{Index: -1} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.inactive":     InactiveDo,
				"ib.pkey.missing": manager,
				"ib.pkey.index":   manager + " The subnet manager decides the order in the table, and a restart of it can change the order. Prefer programs that search for the key.",
				"ib.pkey.empty":   "The subnet manager has assigned no partition to the port: is it running, and does it know the port's GUID? Without a partition the port reaches no other port.",
				"ib.pkey.default": manager + " If your fabric has no default partition name the keys that it has: check_ib_pkey 0x8001.",
			}
		},
	})
}

// InactiveDo is the advice if no port is up.
const InactiveDo = "No port is active, so there is nothing to check: see check_ib_ports for the reason."

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
	ports, findings = AskUp(f, ports, len(c.Devices) > 0, findings)
	for _, p := range ports {
		findings = append(findings, c.judge(f, p, wants)...)
	}
	blameLine(findings, "ib.pkey.missing", len(ports))
	return findings
}

// keys parses the partitions of the line.
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

// AskUp returns the active ports, with a finding if none is active or none is left. named: the line names the ports.
func AskUp(f *Fabric, ports []*Port, named bool, findings []checks.Finding) ([]*Port, []checks.Finding) {
	list := slices.DeleteFunc(slices.Clone(ports), func(p *Port) bool { return p.State != checks.IBActive })
	switch {
	case len(ports)+len(findings) == 0: // the named ports are of another layer
		findings = []checks.Finding{checks.Finding{Code: "ib.left", Severity: checks.Skip}.Describe(f.Check, "no named port has the right link layer")}
	case len(list) == 0 && len(ports) > 0:
		severity := checks.Unknown
		past := portsRun{Fabric: f, past: f.recallPorts()}
		if !slices.ContainsFunc(ports, func(p *Port) bool { return !f.isStarting(p) }) || !named && len(past.past.File.Devices) > 0 && past.areUncabled(ports) {
			severity = checks.Skip
		}
		findings = append(findings, checks.Finding{Code: "ib.inactive", Severity: severity, Device: checks.Device{Kind: "ports"}}.Describe(f.Check, "no port is %s", checks.IBActive))
	}
	return list, findings
}

// judge judges the table of a port. It reads no more of the table than necessary.
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

// fulfils reports whether an entry satisfies a wanted key: a full member, or any member if the
// wanted key has no membership bit.
func fulfils(k, want rdma.PKey) bool {
	return k.Partition() == want.Partition() && (k.Full() || !want.Full())
}
