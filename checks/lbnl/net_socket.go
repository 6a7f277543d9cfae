package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
)

// netSocket checks that a socket exists that fits all match strings given, or with -!
// that none exists. Values are written as ss(8) prints them, except ESTABLISHED: protocols tcp,
// udp, raw and unix, each with IPv6 (u_seq is a Unix socket of type SEQPACKET); local
// addresses 127.0.0.1:25, 0.0.0.0:22, [::1]:25, *:22 (IPv6), /run/my.sock; states LISTEN,
// UNCONN, TIME-WAIT. A line with a word that only netstat prints (tcp6, udp6, raw6, :::22,
// ::1:25, TIME_WAIT, LISTENING, CONNECTED, SEQPACKET) is compared with netstat's words. The user
// is compared by name. A Unix socket has no user and no remote address; only Unix sockets have
// a type. The daemon of a socket that no process has open is "unknown". An action runs in the
// background. The action -E needs -! or -a.
//
//	node* || check_net_socket -n "SSH daemon" -p tcp -s LISTEN -l '*:22' -d sshd
type netSocket struct {
	Label         string   `opt:"n" toml:"label"`          // name of the sockets in messages
	Protocol      string   `opt:"p" toml:"protocol"`       // match string for tcp, udp, raw, unix or u_seq
	Local         string   `opt:"l" toml:"local"`          // match string for the local address and port, or the path
	Remote        string   `opt:"r" toml:"remote"`         // match string for the remote address and port
	State         string   `opt:"s" toml:"state"`          // match string for the state
	Type          string   `opt:"t" toml:"type"`           // match string for STREAM or DGRAM
	User          string   `opt:"u" toml:"user"`           // match string for the owner's name
	Daemon        string   `opt:"d" toml:"daemon"`         // match string for the command name of the process
	Absent        bool     `opt:"!" toml:"absent"`         // fail if such a socket exists
	All           bool     `opt:"a" toml:"all"`            // count all sockets; do not stop at the first
	Nonfatal      bool     `opt:"0" toml:"nonfatal"`       // warn, do not fail
	MissingAction string   `opt:"e" toml:"missing_action"` // shell line to run if no socket is found
	FoundAction   string   `opt:"E" toml:"found_action"`   // shell line to run if a socket is found
	Surplus       []string `arg:"*"`                       // too many arguments: an error
}

func init() {
	checks.Register(checks.Info{
		Name: "check_net_socket",
		Usage: "[-0] [-a] [-!] [-n LABEL] [-p PROTOCOL] [-s STATE] [-l ADDRESS] [-r ADDRESS] [-t TYPE] [-u USER] [-d DAEMON] " +
			"[-e ACTION] [-E ACTION]",
		Summary: "a network or Unix socket exists, or does not exist",
		Lane:    checks.Local,
		New:     func() checks.Check { return &netSocket{} },
		Acts: func(c checks.Check) bool {
			s := c.(*netSocket)
			return s.MissingAction != "" || s.FoundAction != ""
		},
		BadUsage: checks.UsageOf("check_net_socket"),
		Do: func() map[string]string {
			return map[string]string{
				"net.socket.missing": "Check the service that should listen or be connected, and its log. Compare with ss -anpe.",
				"net.socket.found":   "Find the process of the socket with ss -anpe, and stop it: the line forbids this socket.",
			}
		},
	})
}

func (c *netSocket) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	if words := strings.Join(c.Surplus, " "); words != "" {
		return []checks.Finding{checks.Usage(fmt.Sprintf("check_net_socket:  Syntax error:  Unsupported additional arguments supplied (\"%s\").", words), "")}
	}
	if c.criteria() == "" {
		return []checks.Finding{checks.Usage("check_net_socket:  No match criteria supplied.", "")}
	}
	var findings []checks.Finding
	s := socketSearch{netSocket: c, env: env, match: env.Matcher(&findings), users: map[uint32]string{}, netstat: c.isNetstat()}
	n, err := s.count()
	if err != nil {
		return append(findings, checks.Unreadable(err)...)
	}
	switch {
	case n == 0 && c.MissingAction != "":
		env.Spawn(ctx, c.MissingAction, env.Shell(c.MissingAction))
	case n > 0 && c.FoundAction != "" && (c.All || c.Absent):
		env.Spawn(ctx, c.FoundAction, env.Shell(c.FoundAction))
	}
	if (n > 0) == c.Absent {
		findings = append(findings, c.wrong(n))
	}
	return findings
}

// criteria returns the match strings as LBNL NHC prints them.
func (c *netSocket) criteria() string {
	var list []string
	for _, field := range []struct{ name, expr string }{
		{"protocol", c.Protocol},
		{"localaddr", c.Local},
		{"remoteaddr", c.Remote},
		{"state", c.State},
		{"type", c.Type},
		{"user", c.User},
		{"daemon", c.Daemon},
	} {
		if field.expr != "" {
			list = append(list, fmt.Sprintf("(%s =~ \"%s\")", field.name, field.expr))
		}
	}
	return strings.Join(list, " && ")
}

// wrong returns the failure for n sockets found.
func (c *netSocket) wrong(n int) checks.Finding {
	label := cmp.Or(c.Label, "matching")
	f := checks.Finding{
		Code:     "net.socket.missing",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "socket", Name: cmp.Or(c.Label, c.Daemon, c.Local, c.Remote, c.Protocol)},
		Want:     "at least 1",
		Got:      "0",
	}.Phrase("check_net_socket", "No %s sockets found", label)
	if n > 0 {
		f.Code = "net.socket.found"
		f = f.Phrase("check_net_socket", "%d %s socket(s) found", n, label)
		f.Want, f.Got = "0", strconv.Itoa(n)
		f.Status = min(n, 255) // LBNL NHC exits with n modulo 256, which can be 0
	}
	seek := c.criteria()
	if c.All {
		seek += " (all)"
	}
	if c.Nonfatal {
		seek += " (non-fatal)"
	}
	if c.Absent {
		seek += " (NEGATED)"
	}
	f.Message += " (" + seek + ")"
	if c.Nonfatal {
		f.Severity = checks.Warn
		f.Message += " (non-fatal)"
	}
	return f
}

// socketSearch is one run of the check.
type socketSearch struct {
	*netSocket
	env   *checks.Env
	match func(s, expr string) bool
	users map[uint32]string // names already looked up
	procs map[uint64]network.Holder

	netstat bool // the line has netstat's words
}

// onlyNetstat matches a value, or a part of it, that netstat prints and ss does not.
var onlyNetstat = checks.Lazily(`(?m)\b(?:tcp|udp|raw)6\b|:::|^[*/^]*::1:|SYN_|_WAIT|LAST_ACK|LISTENING|CONNECTED|SEQPACKET`)

// isNetstat reports whether the line was written for netstat, which LBNL NHC prefers to ss.
func (c *netSocket) isNetstat() bool {
	return onlyNetstat().MatchString(strings.Join([]string{c.Protocol, c.Local, c.Remote, c.State, c.Type}, "\n"))
}

// count returns the number of sockets that match; without -a it stops at the first. It reads
// only the lists of protocols that can match.
func (s *socketSearch) count() (n int, err error) {
	for _, protocol := range network.SocketProtocols {
		asNetstat := s.netstat && (protocol == "u_seq" || s.fits(protocol+"6", s.Protocol))
		if !asNetstat && !s.fits(protocol, s.Protocol) {
			continue
		}
		s.env.At("read the %s sockets in /proc/net", protocol)
		sockets, err := network.Sockets(s.env.Host, protocol)
		if err != nil {
			return n, err
		}
		for i := range sockets {
			ok, err := s.wants(&sockets[i], protocol)
			switch {
			case err != nil:
				return n, err
			case ok && !s.All:
				return 1, nil
			case ok:
				n++
			}
		}
	}
	return n, nil
}

// fits reports whether a value fits a match string; an empty match string fits any value.
func (s *socketSearch) fits(value, expr string) bool { return expr == "" || s.match(value, expr) }

// wants reports whether a socket fits all match strings. It compares the process last, since
// finding it is expensive.
func (s *socketSearch) wants(k *network.Socket, protocol string) (bool, error) {
	local, remote, state, kind := k.Local, k.Remote, k.State, k.Type
	if s.netstat {
		n := k.AsNetstat(protocol)
		if !s.fits(n.Protocol(), s.Protocol) {
			return false, nil
		}
		local, remote, state, kind = n.Local, n.Remote, n.State(), n.Type()
	}
	if s.Local != "" && !s.match(local(), s.Local) || s.Remote != "" && !s.match(remote(), s.Remote) ||
		!s.fits(state, s.State) || !s.fits(kind, s.Type) || s.User != "" && !s.match(s.user(k), s.User) {
		return false, nil
	}
	if s.Daemon == "" {
		return true, nil
	}
	name, err := s.daemon(k)
	return err == nil && s.match(name, s.Daemon), err
}

// user returns the name of a socket's owner; "" if it has no owner or the owner no account.
func (s *socketSearch) user(k *network.Socket) string {
	if !k.Owned {
		return ""
	}
	name, ok := s.users[k.UID]
	if !ok {
		s.env.At("look up uid %d", k.UID)
		name = probe.UserName(s.env.Host, k.UID)
		s.users[k.UID] = name
	}
	return name
}

// daemon returns the command name of the process that has a socket open.
func (s *socketSearch) daemon(k *network.Socket) (string, error) {
	if s.procs == nil {
		s.env.At("look for sockets in /proc/*/fd")
		procs, err := network.Holders(s.env.Host)
		if err != nil {
			return "", err
		}
		s.procs = procs
	}
	if p, ok := s.procs[k.Inode]; ok {
		return p.Name, nil
	}
	return "unknown", nil
}
