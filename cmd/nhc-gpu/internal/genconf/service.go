package genconf

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// daemon is a program that gets a line if it runs on the node.
type daemon struct {
	program string // the last part of the command line's first word
	match   string // match string for the whole command line, if the first word does not identify it
	service string // the name of its service without systemd; "": the name of the program
	check   string // a check that asks the daemon, "" for none
	debian  string // the name on Debian and Ubuntu, if it differs
}

// daemons is in the order of the lines. sshd and others overwrite their command lines with titles;
// the first word of a Python program is python.
var daemons = []daemon{
	{program: "systemd-journald"}, {program: "systemd-logind"}, {program: "systemd-udevd"}, {program: "systemd-resolved"},
	{program: "systemd-networkd"}, {program: "systemd-timesyncd"}, {program: "systemd-oomd"},
	{program: "dbus-daemon", service: "dbus"}, {program: "dbus-broker", service: "dbus-broker"},
	{program: "NetworkManager"},
	{program: "sshd", match: "@(*/sshd|*/sshd *)", debian: "ssh"},
	{program: "crond"}, {program: "cron"}, {program: "atd"},
	{program: "rsyslogd", service: "rsyslog"}, {program: "syslogd", service: "syslog"}, {program: "syslog-ng"},
	{program: "chronyd", debian: "chrony"}, {program: "ntpd", debian: "ntp"}, {program: "ptp4l"}, {program: "phc2sys"},
	{program: "sssd"}, {program: "nslcd"}, {program: "nscd"},
	{program: "munged", service: "munge"}, {program: "slurmd"}, {program: "slurmctld"}, {program: "slurmdbd"}, {program: "slurmrestd"},
	{program: "pbs_mom"},
	{program: "nvidia-persistenced"}, {program: "nv-fabricmanager", service: "nvidia-fabricmanager"},
	{program: "nv-hostengine", service: "nvidia-dcgm", check: "check_dcgm_health"}, {program: "nvidia-imex"}, {program: "dcgm-exporter"},
	{program: "opensm"}, {program: "rdma-ndd"}, {program: "ibacm"}, {program: "srp_daemon"},
	{program: "rpcbind"}, {program: "rpc.statd", service: "rpc-statd"}, {program: "rpc.mountd", service: "nfs-mountd"},
	{program: "rpc.idmapd", service: "nfs-idmapd"}, {program: "gssproxy"}, {program: "automount", service: "autofs"},
	{program: "mmfsd", service: "gpfs"}, {program: "multipathd"}, {program: "iscsid"},
	{program: "auditd"}, {program: "irqbalance"}, {program: "tuned", match: "@(*/tuned|*/tuned *)"},
	{program: "firewalld", match: "@(*/firewalld|*/firewalld *)"}, {program: "smartd"}, {program: "mcelog", check: "check_hw_mcelog"}, {program: "rasdaemon"},
	{program: "ipmievd"}, {program: "lldpd"}, {program: "snmpd"}, {program: "gmond", service: "ganglia-monitor"},
	{program: "node_exporter"}, {program: "telegraf"}, {program: "containerd"}, {program: "dockerd", service: "docker"}, {program: "kubelet"},
	{program: "xinetd"}, {program: "httpd"}, {program: "libvirtd"}, {program: "mysqld"}, {program: "mariadbd", service: "mariadb"},
	{program: "qmgr", service: "postfix"},
}

// processSection adds the load and the services.
func (g *generator) processSection(a answers) {
	g.sheet.heading("Process checks")
	g.loadLine(a)
	inv := g.part(a, inventory.PartServices)
	if inv == nil {
		return
	}
	debian := g.Get("SYSCONFIGDIR") == "/etc/default"
	g.dbg("%d different processes of the node itself", len(inv.Services))
	for _, d := range daemons {
		if s, ok := d.find(inv.Services); ok {
			g.sheet.service(s, d.words(s, debian))
			if d.check != "" {
				g.sheet.standing(checks.Fail, d.check)
			}
		}
	}
}

// service adds the line of a service. One that starts on demand has no process after a boot.
func (s *sheet) service(found inventory.Service, words []string) {
	if s.check("check_ps_service", words...) && found.OnDemand {
		s.lines[len(s.lines)-1].why = found.Unit + " starts only when it is needed, so it does not run after a boot"
	}
}

// find returns the process of a daemon, preferably root's.
func (d daemon) find(list []inventory.Service) (inventory.Service, bool) {
	var fits []inventory.Service
	for _, s := range list {
		first, _, _ := strings.Cut(s.Args, " ")
		if d.match == "" && base(first) == d.program || d.match != "" && match.Glob(s.Args, d.match) {
			fits = append(fits, s)
		}
	}
	if len(fits) == 0 {
		return inventory.Service{}, false
	}
	return slices.MinFunc(fits, func(x, y inventory.Service) int { return cmp.Compare(x.UID, y.UID) }), true
}

// words returns the arguments of check_ps_service for a process of the daemon.
func (d daemon) words(s inventory.Service, debian bool) []string {
	service := cmp.Or(s.Unit, d.service, d.program)
	if s.Unit == "" && debian {
		service = cmp.Or(d.debian, service)
	}
	var words []string
	if s.User != "" {
		words = append(words, "-u", literalMatch(s.User))
	}
	switch {
	case d.match != "":
		words = append(words, "-f", "-m", d.match)
	case service != d.program:
		words = append(words, "-d", d.program)
	}
	return append(words, service)
}
