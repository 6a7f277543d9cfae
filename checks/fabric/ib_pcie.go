package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibPCIe checks the PCIe links of the RDMA devices that carry jobs' traffic, or of each DEVICE.
// Each link must have the width and speed that device and slot support together, or at least -w
// WIDTH lanes and -s SPEED (generation 5, or 32 GT/s). This also applies to each link above it,
// up to the root port; one that supports less than the device only warns, unless the platform is
// built so. A link with less only warns if that is usual for its kind and it never had more. The
// check also warns of less than the platform has, of a slot that supports less than the others, of
// a MaxReadReq below the recommendation for the device or different from the others, and of relaxed
// ordering that is off on some devices only. With -m BYTES a lower MaxReadReq fails.
//
// It warns if Access Control Services (ACS) redirect traffic between an adapter and a GPU below
// one switch over the root port: that costs GPUDirect most of its bandwidth. An IOMMU that
// separates devices for virtual machines needs these redirections. With -a any redirection fails,
// on every bridge above an adapter or a GPU. A virtual machine has no such bridges, and nothing
// that is hidden is judged. Only root can read MaxReadReq, ordering and ACS.
//
//	gpu* || check_ib_pcie
//	gpu* || check_ib_pcie -w 16 -s 5 -m 4096
//	gpu* || check_ib_pcie -a mlx5_0 mlx5_1
type ibPCIe struct {
	Width       int      `opt:"w" toml:"width" in:"1:32 min"`            // least number of lanes in use
	Speed       string   `opt:"s" toml:"speed"`                          // least generation (5), or speed in GT/s (32)
	ReadRequest int      `opt:"m" toml:"read_request" in:"128:4096 min"` // least MaxReadReq, bytes
	ACS         bool     `opt:"a" toml:"acs"`                            // ACS must be off on every bridge above
	Devices     []string `arg:"*" toml:"devices"`                        // RDMA devices; none: those that carry jobs' traffic
}

const ibPCIeName = "check_ib_pcie"

func init() {
	const reseat = "Compare with the other adapters (lspci -vv, LnkCap and LnkSta; lspci -tv shows the bridges). Reseat the adapter, riser or cable; if the fault remains, one of the two ends is faulty. "
	const changed = " After an intended change of one device delete pcie-link.json in " + checks.PastDir + "."
	checks.Register(checks.Info{
		Name:    ibPCIeName,
		Usage:   "[-w WIDTH] [-s SPEED] [-m BYTES] [-a] [DEVICE...]",
		Summary: "RDMA devices have full PCIe links up to the root port",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibPCIe{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.pcie.gone":     "The adapter does not answer on the bus. Power the node off and on (a reboot may not be enough). If the fault returns, reseat the adapter, then replace it. See dmesg for mlx5_core and AER lines.",
				"ib.pcie.width":    reseat + "If this width is expected, set it: -w WIDTH." + changed,
				"ib.pcie.speed":    reseat + "If the BIOS limits the slot, set the generation: -s SPEED." + changed,
				"ib.pcie.slot":     "Compare the slot with those of the other adapters: the BIOS can split or limit it, or the adapter is in the wrong slot.",
				"ib.pcie.platform": "Adapter and slot together support less than this platform has: see the BIOS's setting for the slot, the riser, and the adapter's model.",
				"ib.pcie.tree":     "A link between the adapter and its root port is slower than the adapter's own: see lspci -tv, and lspci -vv of the named bridge. A BIOS setting, a retimer or a riser can be the cause.",
				"ib.pcie.readreq":  "setpci -s ADDRESS CAP_EXP+8.w shows it (bits 14:12); see the BIOS, PCI_WR_ORDERING and MAX_ACC_OUT_READ of the adapter, and the boot scripts that set it on other nodes.",
				"ib.pcie.acs":      "Disable ACS in the BIOS, or after each boot on every bridge that the message names: setpci -s BRIDGE ECAP_ACS+6.w=0. Not if the node passes devices to virtual machines. nvidia-smi topo -m and a GPUDirect test show the difference.",
				"ib.pcie.ordering": "Set PCI_WR_ORDERING to the same value on all adapters (mlxconfig), and see the BIOS's setting for relaxed ordering.",
				"ib.pcie.unseen":   "Nothing to repair in a virtual machine. Otherwise run it as root: only root can read the configuration space.",
			}
		},
	})
}

// ibLink is an RDMA device with its link and its registers.
type ibLink struct {
	*pcie.Link

	hca    *rdma.HCA
	model  *HCAModel // nil: unknown
	config pci.Config
}

// registers reports whether the device has the registers to judge: those of a virtual function
// are 0, since they belong to the physical one.
func (l *ibLink) registers() bool { return l.config.Express && !l.virtual() }

func (l *ibLink) virtual() bool { return l.VF || l.model != nil && l.model.Virtual }

// others returns the rest of a kind.
func (l *ibLink) others(links []*ibLink) (list []*ibLink) {
	for _, o := range links {
		if o != l && o.registers() && o.Kind == l.Kind {
			list = append(list, o)
		}
	}
	return list
}

func (c *ibPCIe) Run(_ context.Context, env *checks.Env) []checks.Finding {
	want, findings := pcie.Wanted(ibPCIeName, c.Width, c.Speed)
	if findings != nil {
		return findings
	}
	f, findings := Ask(env, ibPCIeName)
	if f == nil {
		return findings
	}
	ports, findings := f.Judged(c.Devices, "")
	links, more, failed := readLinks(f, ports)
	findings = append(findings, more...)
	var plain []*pcie.Link
	shown, configured := failed, failed
	for _, l := range links {
		plain = append(plain, l.Link)
		shown, configured = shown || l.Known() || l.config.Express, configured || l.config.Express
	}
	switch {
	case len(links) > 0 && !shown:
		return append(findings, checks.Finding{Code: "ib.pcie.unseen", Severity: checks.Skip}.Describe(ibPCIeName, "the kernel does not show the PCIe links of RDMA devices"))
	case len(links) > 0 && !configured && (c.ReadRequest > 0 || c.ACS):
		findings = append(findings, checks.Finding{Code: "ib.pcie.unseen", Severity: checks.Skip}.
			Describe(ibPCIeName, "PCI Express registers cannot be read: MaxReadReq and ACS not checked"))
	}
	past := pcie.RecallPast(env, ibPCIeName)
	for i, faults := range pcie.Judge(plain, want, past) {
		for _, fault := range faults {
			findings = append(findings, fault.Finding(ibPCIeName, "ib.pcie."+fault.What, HCADevice(links[i].hca)))
		}
		if len(faults) == 0 {
			findings = append(findings, c.belowPlatform(f, links[i])...)
		}
	}
	findings = append(findings, judgeTree(f, links, past)...)
	findings = append(findings, past.Store(env, ibPCIeName)...)
	findings = append(findings, c.judgeReadRequests(f, links)...)
	findings = append(findings, judgeOrdering(f, links)...)
	return append(findings, c.judgeACS(f, links)...)
}

// readLinks returns the links of the ports' devices, each once. failed means that some could not
// be read: that differs from a link that the kernel hides.
func readLinks(f *Fabric, ports []*Port) (links []*ibLink, findings []checks.Finding, failed bool) {
	seen := map[string]bool{}
	for _, p := range ports {
		a := p.HCA
		if a.PCI == "" || seen[a.Name] {
			continue
		}
		seen[a.Name] = true
		l := &ibLink{Link: pcie.ReadLink(f.env, a.PCI), hca: a, model: ModelOf(a.Vendor, a.Model, a.Board)}
		f.env.At("read /sys/bus/pci/devices/%s/config", a.PCI)
		config, err := pci.ReadConfig(f.env.Host, a.PCI)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		l.config = config
		if config.Gone {
			findings = append(findings, checks.Finding{Code: "ib.pcie.gone", Severity: checks.Fail, Remedy: checks.PowerCycle}.
				Report(f.Check, HCADevice(a), "does not answer on the PCI bus"))
			failed = true
			continue
		}
		if err = errors.Join(l.Err, err); err != nil {
			findings = append(findings, f.Unknown(HCADevice(a), err))
			failed = true
		}
		links = append(links, l)
	}
	return links, findings, failed
}

// belowPlatform warns of less than the node's platform has, if the board supports the platform's
// rate: other boards are for storage, or a console.
func (c *ibPCIe) belowPlatform(f *Fabric, l *ibLink) (findings []checks.Finding) {
	p, _ := checks.NodePlatform(f.env)
	if l.model == nil || l.virtual() || l.model.Rate < p.NetworkRate || !l.Known() {
		return nil
	}
	least := pcie.GenSpeed(p.NetworkPCIeGen)
	if l.model.PCIeGen > 0 { // a storage adapter can be of an older generation
		least = min(least, pcie.GenSpeed(l.model.PCIeGen))
	}
	say := func(what, want, got string) {
		findings = append(findings, checks.Finding{Code: "ib.pcie.platform", Severity: checks.Warn, Want: want, Got: got}.
			Report(f.Check, HCADevice(l.hca), "PCIe %s is lower than on %s", what, p.Name))
	}
	if c.Width <= 0 && l.Width < p.NetworkPCIeWidth {
		say("width", pcie.Lanes(p.NetworkPCIeWidth), pcie.Lanes(l.Width))
	}
	if c.Speed == "" && l.Speed < least {
		say("speed", pcie.SpeedText(least), pcie.SpeedText(l.Speed))
	}
	return findings
}

// judgeReadRequests judges MaxReadReq: by the line, by the model's recommendation, by the others
// of its kind.
func (c *ibPCIe) judgeReadRequests(f *Fabric, links []*ibLink) (findings []checks.Finding) {
	say := func(l *ibLink, severity checks.Severity, want int, how string) {
		findings = append(findings, checks.Finding{Code: "ib.pcie.readreq", Severity: severity, Remedy: checks.FixConfig,
			Want: fmt.Sprintf("at least %d", want), Got: fmt.Sprint(l.config.ReadRequest)}.Report(f.Check, HCADevice(l.hca), "MaxReadReq%s", how))
	}
	for _, l := range links {
		if !l.registers() {
			continue
		}
		most := pcie.MostOf(l.others(links), func(o *ibLink) int { return o.config.ReadRequest })
		switch got := l.config.ReadRequest; {
		case c.ReadRequest > 0 && got < c.ReadRequest:
			say(l, checks.Fail, c.ReadRequest, "")
		case c.ReadRequest > 0:
		case l.model != nil && got < l.model.ReadRequest:
			say(l, checks.Warn, l.model.ReadRequest, " is below the recommendation for "+l.model.Name)
		case got < most:
			say(l, checks.Warn, most, " is lower than on other adapters")
		}
	}
	return findings
}

// judgeOrdering warns if relaxed ordering is off although others of the kind have it on. A
// virtual function does not have the bit.
func judgeOrdering(f *Fabric, links []*ibLink) (findings []checks.Finding) {
	for _, l := range links {
		if l.registers() && !l.config.Relaxed && slices.ContainsFunc(l.others(links), func(o *ibLink) bool { return o.config.Relaxed }) {
			findings = append(findings, checks.Finding{Code: "ib.pcie.ordering", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "on", Got: "off"}.Report(f.Check, HCADevice(l.hca),
				"relaxed ordering differs from other adapters"))
		}
	}
	return findings
}
