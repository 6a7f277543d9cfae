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

// netSocket checks that there is a socket of which all match strings given
// hold, or with -! that there is none. Values are as ss(8) has them, but for
// ESTABLISHED: protocols tcp, udp, raw and unix, IPv6 among them (u_seq are
// Unix sockets of type SEQPACKET); local addresses 127.0.0.1:25, 0.0.0.0:22,
// [::1]:25, *:22 (IPv6), /run/my.sock; states LISTEN, UNCONN, TIME-WAIT. The
// user is compared by name. A Unix socket has no user and no remote address;
// only Unix sockets have a type. The daemon of a socket that no process has
// open is "unknown". An action runs in the background; that for sockets found
// needs -! or -a.
//
//	node* || check_net_socket -n "SSH daemon" -p tcp -s LISTEN -l '*:22' -d sshd
type netSocket struct {
	Label         string   `opt:"n" toml:"label"`          // what the messages call the sockets
	Protocol      string   `opt:"p" toml:"protocol"`       // match string for tcp, udp, raw, unix or u_seq
	Local         string   `opt:"l" toml:"local"`          // match string for the local address and port, or the path
	Remote        string   `opt:"r" toml:"remote"`         // match string for the remote address and port
	State         string   `opt:"s" toml:"state"`          // match string for the state
	Type          string   `opt:"t" toml:"type"`           // match string for STREAM or DGRAM
	User          string   `opt:"u" toml:"user"`           // match string for the owner's name
	Daemon        string   `opt:"d" toml:"daemon"`         // match string for the command name of the process
	Absent        bool     `opt:"!" toml:"absent"`         // fail if there is such a socket
	All           bool     `opt:"a" toml:"all"`            // look at all sockets, not only until one is found
	Nonfatal      bool     `opt:"0" toml:"nonfatal"`       // only say what is wrong
	MissingAction string   `opt:"e" toml:"missing_action"` // if there is none: a shell line
	FoundAction   string   `opt:"E" toml:"found_action"`   // if there is one: a shell line
	Surplus       []string `arg:"*"`                       // words too many
}

func init() {
	checks.Register(checks.Info{
		Name: "check_net_socket",
		Usage: "[-0] [-a] [-!] [-n LABEL] [-p PROTOCOL] [-s STATE] [-l ADDRESS] [-r ADDRESS] [-t TYPE] [-u USER] [-d DAEMON] " +
			"[-e ACTION] [-E ACTION]",
		Summary: "there is a network or Unix socket, or there is none",
		Lane:    checks.Local,
		New:     func() checks.Check { return &netSocket{} },
		Acts: func(c checks.Check) bool {
			s := c.(*netSocket)
			return s.MissingAction != "" || s.FoundAction != ""
		},
		BadUsage: checks.UsageOf("check_net_socket"),
		Do: func() map[string]string {
			return map[string]string{
				"net.socket.missing": "What should listen or be connected there does not: see its service and log. Compare with ss -anpe.",
				"net.socket.found":   "It must not be there: find its process with ss -anpe, and stop it.",
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
	s := socketSearch{netSocket: c, env: env, match: env.Matcher(&findings), users: map[uint32]string{}}
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

// criteria says in LBNL's words what is looked for.
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

// wrong reports that there is no socket, or that there are n.
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
		f.Status = min(n, 255) // LBNL NHC's own is the number modulo 256, which may be success
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
}

// count is how many sockets match; without -a it stops at the first. Only the
// lists of those protocols are read that can match.
func (s *socketSearch) count() (n int, err error) {
	for _, protocol := range network.SocketProtocols {
		if !s.fits(protocol, s.Protocol) {
			continue
		}
		s.env.At("read the %s sockets in /proc/net", protocol)
		sockets, err := network.Sockets(s.env.Host, protocol)
		if err != nil {
			return n, err
		}
		for i := range sockets {
			ok, err := s.wants(&sockets[i])
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

// fits says whether a match string holds, if one is given.
func (s *socketSearch) fits(value, expr string) bool { return expr == "" || s.match(value, expr) }

// wants compares what costs nothing first, and the process last.
func (s *socketSearch) wants(k *network.Socket) (bool, error) {
	if s.Local != "" && !s.match(k.Local(), s.Local) || s.Remote != "" && !s.match(k.Remote(), s.Remote) ||
		!s.fits(k.State, s.State) || !s.fits(k.Type, s.Type) || s.User != "" && !s.match(s.user(k), s.User) {
		return false, nil
	}
	if s.Daemon == "" {
		return true, nil
	}
	name, err := s.daemon(k)
	return err == nil && s.match(name, s.Daemon), err
}

// user is the name of a socket's owner, "" if it has none or that has no account.
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

// daemon is the command name of the process that has a socket open.
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
