package hostengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Health reads the incidents of some systems.
//
// If the engine already watches these systems, because a user has run "dcgmi health -s", Health
// reads those watches: they know the past. Otherwise Health creates its own group with temporary
// watches. It does not use the groups of all GPUs and of all switches: the engine would keep the
// systems set on them, but not their watches, after the connection ends, and would answer everyone
// with outdated readings.
//
// The incidents of a group come with the error of another one.
func (e *libEngine) Health(ctx context.Context, systems System) (*Health, error) {
	answer := &Health{}
	var failed error
	check := func(group dcgm.GroupHandle) {
		r, err := ask(ctx, e, "dcgmHealthCheck", func() (dcgm.HealthResponse, error) { return dcgm.HealthCheck(group) })
		failed = cmp.Or(failed, err)
		for _, i := range r.Incidents {
			if s := System(i.System); s == 0 || s&systems != 0 {
				answer.Incidents = append(answer.Incidents, convertIncident(i))
			}
		}
	}
	var unwatched []dcgmPart
	for _, p := range e.parts(ctx, systems) {
		have, err := ask(ctx, e, "dcgmHealthGet", func() (dcgm.HealthSystem, error) { return dcgm.HealthGet(p.all) })
		if err != nil && p.kind == dcgm.FE_GPU {
			return nil, err
		}
		if want := p.wanted(); System(have)&want == want {
			check(p.all)
			continue
		}
		unwatched = append(unwatched, p)
		answer.Fresh = answer.Fresh || p.kind == dcgm.FE_GPU
	}
	if len(unwatched) > 0 && !isHung(failed) {
		group, ready, err := e.watch(ctx, unwatched)
		if failed = cmp.Or(failed, err); !ready {
			return answer, failed
		}
		defer func() {
			_ = e.call(ctx, "dcgmGroupDestroy", func() error { return dcgm.DestroyGroup(group) })
		}()
		check(group)
	}
	return answer, failed
}

func isHung(err error) bool { return errors.As(err, new(*HungError)) }

// dcgmPart is a kind of entities with watches, and the group to query.
type dcgmPart struct {
	kind    dcgm.Field_Entity_Group
	all     dcgm.GroupHandle // the engine's own group of them
	systems System
}

const (
	dcgmSwitches = DCGMSwitchNonFatal | DCGMSwitchFatal
	// dcgmiWatches are the systems that "dcgmi health -s a" watches, fewer than all:
	// CommandLineParser.cpp of DCGM 4.
	dcgmiWatches = DCGMPCIe | DCGMNVLink | DCGMMemory | DCGMInfoROM | DCGMThermal | DCGMPower | dcgmSwitches

	dcgmGroupAllSwitches = 0x7ffffffe // DCGM_GROUP_ALL_NVSWITCHES of dcgm_structs.h
)

// parts returns the GPUs, and the switches if there are some: the group of all GPUs contains no
// switch, whichever systems are watched there.
func (e *libEngine) parts(ctx context.Context, systems System) []dcgmPart {
	parts := []dcgmPart{{dcgm.FE_GPU, dcgm.GroupAllGPUs(), systems &^ dcgmSwitches}}
	if systems&dcgmSwitches == 0 {
		return parts
	}
	switches, err := ask(ctx, e, "dcgmGetEntityGroupEntities", func() ([]uint, error) { return dcgm.GetEntityGroupEntities(dcgm.FE_SWITCH) })
	if err == nil && len(switches) > 0 {
		p := dcgmPart{kind: dcgm.FE_SWITCH, systems: systems & dcgmSwitches}
		p.all.SetHandle(dcgmGroupAllSwitches)
		parts = append(parts, p)
	}
	return parts
}

// wanted returns the systems that the engine must watch already, so that its past is known. It
// ignores the systems that dcgmi cannot switch on, unless there are no others.
func (p *dcgmPart) wanted() System {
	return cmp.Or(p.systems&dcgmiWatches, p.systems)
}

func convertIncident(i dcgm.Incident) Incident {
	return Incident{
		Entity: Entity{Kind: nameKind(uint(i.EntityInfo.EntityGroupId)), ID: int(i.EntityInfo.EntityId)}, System: System(i.System),
		Failed: i.Health >= dcgm.DCGM_HEALTH_RESULT_FAIL, Code: int(i.Error.Code), Message: probe.OneLine(i.Error.Message),
	}
}

// dcgmKinds are the names of dcgm_field_entity_group_t: dcgm_fields.h of DCGM 4.6.
var dcgmKinds = []string{"", "gpu", "vgpu", "switch", "gpu instance", "compute instance", "link", "cpu", "cpu core", "connectx"}

func nameKind(group uint) string {
	if group < uint(len(dcgmKinds)) {
		return dcgmKinds[group]
	}
	return fmt.Sprintf("entity group %d", group)
}

// watch creates a group of all entities of some kinds with watches, and makes the engine read their
// values. If it is ready an error is that of a GPU that is not in it.
func (e *libEngine) watch(ctx context.Context, parts []dcgmPart) (group dcgm.GroupHandle, ready bool, err error) {
	group, err = ask(ctx, e, "dcgmGroupCreate", func() (dcgm.GroupHandle, error) {
		return dcgm.CreateGroup(fmt.Sprintf("nhc-gpu-%d", os.Getpid()))
	})
	if err != nil {
		return group, false, err
	}
	var systems System
	var failed error
	for _, p := range parts {
		systems |= p.systems
		added, err := e.addAll(ctx, group, p.kind)
		switch {
		case p.kind != dcgm.FE_GPU:
		case added == 0 && err != nil:
			return group, false, err
		default:
			failed = err
		}
	}
	err = e.call(ctx, "dcgmHealthSet", func() error { return dcgm.HealthSet(group, dcgm.HealthSystem(systems)) })
	if err == nil {
		err = e.call(ctx, "dcgmUpdateAllFields", dcgm.UpdateAllFields)
	}
	return group, err == nil, cmp.Or(failed, err)
}

// addAll adds all entities of a kind to a group, as far as DCGM accepts them.
func (e *libEngine) addAll(ctx context.Context, group dcgm.GroupHandle, kind dcgm.Field_Entity_Group) (added int, err error) {
	return ask(ctx, e, "dcgmGroupAddEntity", func() (added int, err error) {
		ids, err := dcgm.GetEntityGroupEntities(kind)
		for _, id := range ids {
			if bad := dcgm.AddEntityToGroup(group, kind, id); bad != nil {
				err = cmp.Or(err, bad)
				continue
			}
			added++
		}
		return added, err
	})
}
