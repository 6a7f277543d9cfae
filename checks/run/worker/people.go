package worker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/active"
	"github.com/nhc-gpu/nhc-gpu/checks/explain"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
)

// The worker answers the commands of people, because they read the same files as the checks, and
// these may lie on a file system that does not answer.

func answerPerson(w *worker, req *wire.Request) *wire.Response {
	env := w.env(req, w.vars.Plain)
	resp := &wire.Response{}
	var err error
	switch req.Name {
	case wire.AskExplain:
		resp.Text, err = xid.Explain(env, strings.Join(req.Args, " "))
	case wire.AskMessage:
		resp.Text, err = explain.Explain(env, strings.Join(req.Args, " "))
	case wire.AskBaselines:
		resp.Baselines, err = active.Baselines(env)
	case wire.AskNames:
		for _, p := range req.Places {
			resp.Names = append(resp.Names, env.Host.PastNames(p.Past)...)
		}
	case wire.AskSamples:
		resp.Data, err = extractSamples(env, req.Args, 0)
	case wire.AskOwnSamples:
		resp.Data, err = askForOwn(req.Path, req.Who, req.Args)
	case wire.AskHolders:
		resp.Names, err = probe.Holders(w.host, "/dev/nvidia")
	case wire.AskReset:
		err = xid.NoteReset(env, req.Args)
		if spare, elsewhere := errors.AsType[*probe.SpareError](err); elsewhere {
			resp.Doubts, err = append(resp.Doubts, spare.Error()), nil
		}
	case wire.AskClear:
		err = clearMemory(w, env, req, resp)
	default:
		err = fmt.Errorf("unknown question %q", req.Name)
	}
	if err != nil {
		resp.Err = err.Error()
	}
	return resp
}

// clearances are the functions that clear a part of the checks' memory, and the functions that
// report whether it concerns this node in this boot.
var clearances = map[string]struct {
	clear    func(env *checks.Env, words []string, who string) (cleared []string, err error)
	thisNode func(env *checks.Env) bool
}{
	wire.ClearXid:      {xid.Clear, xid.OfThisBoot},
	wire.ClearPorts:    {fabric.ClearIB, fabric.PortsOfThisBoot},
	wire.ClearBaseline: {active.ClearBaseline, active.BaselineOfThisNode},
	wire.ClearActive:   {active.ClearActive, active.OfThisNode},
}

// clearMemory clears each place. It reports data of another node as a doubt.
func clearMemory(w *worker, env *checks.Env, req *wire.Request, resp *wire.Response) error {
	c, ok := clearances[req.Path]
	if !ok {
		return fmt.Errorf("clear: unknown kind %q", req.Path)
	}
	defer w.host.SetPast(w.vars.Past, w.vars.Spare)
	for _, p := range req.Places {
		w.host.SetPast(p.Past, p.Spare)
		if p.Past != "" && !w.host.PastAnswers() { // the records would not have it
			return fmt.Errorf("clear: %w", cmp.Or(w.host.Silence(), fmt.Errorf("read %s: no answer", p.Past)))
		}
		if !p.Always && !c.thisNode(env) {
			continue // a node that shares the disk, or no data
		}
		more, err := c.clear(env, req.Args, req.Who)
		if spare, elsewhere := errors.AsType[*probe.SpareError](err); elsewhere {
			resp.Doubts = append(resp.Doubts, spare.Error())
		} else if err != nil {
			return err
		}
		resp.Names = append(resp.Names, more...)
	}
	slices.Sort(resp.Names)
	resp.Names = slices.Compact(resp.Names)
	return nil
}
