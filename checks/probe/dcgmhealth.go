package probe

import (
	"context"
	"fmt"
	"os"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// Health asks for the incidents of some systems.
//
// Where the engine watches them already, since somebody has said "dcgmi health -s",
// its own watches are asked: they know what has been. Otherwise a group of our own
// gets watches for the moment. The group of all GPUs is left as it is: the engine
// would keep the systems set on it, but not their watches, once the connection ends,
// and would answer everybody from readings that grow old.
func (e *libEngine) Health(ctx context.Context, systems DCGMSystem) (*DCGMHealth, error) {
	group := dcgm.GroupAllGPUs()
	have, err := asking(ctx, e, "dcgmHealthGet", func() (dcgm.HealthSystem, error) { return dcgm.HealthGet(group) })
	if err != nil {
		return nil, err
	}
	answer := &DCGMHealth{Fresh: DCGMSystem(have)&systems != systems}
	if answer.Fresh {
		if group, err = e.watch(ctx, systems); err != nil {
			return nil, err
		}
		defer func() {
			_ = e.telling(ctx, "dcgmGroupDestroy", func() error { return dcgm.DestroyGroup(group) })
		}()
	}
	r, err := asking(ctx, e, "dcgmHealthCheck", func() (dcgm.HealthResponse, error) { return dcgm.HealthCheck(group) })
	if err != nil {
		return nil, err
	}
	for _, i := range r.Incidents {
		if s := DCGMSystem(i.System); s == 0 || s&systems != 0 {
			answer.Incidents = append(answer.Incidents, incidentOf(i))
		}
	}
	return answer, nil
}

func incidentOf(i dcgm.Incident) DCGMIncident {
	return DCGMIncident{
		Entity: DCGMEntity{Kind: dcgmKind(uint(i.EntityInfo.EntityGroupId)), ID: int(i.EntityInfo.EntityId)}, System: DCGMSystem(i.System),
		Failed: i.Health >= dcgm.DCGM_HEALTH_RESULT_FAIL, Code: int(i.Error.Code), Message: oneLine(i.Error.Message),
	}
}

// dcgmKinds are the names of dcgm_field_entity_group_t: dcgm_fields.h of DCGM 4.6.
var dcgmKinds = []string{"", "gpu", "vgpu", "switch", "gpu instance", "compute instance", "link", "cpu", "cpu core", "connectx"}

func dcgmKind(group uint) string {
	if group < uint(len(dcgmKinds)) {
		return dcgmKinds[group]
	}
	return fmt.Sprintf("entity group %d", group)
}

// watch makes a group of all GPUs and switches with watches, and has the engine read
// what they look at.
func (e *libEngine) watch(ctx context.Context, systems DCGMSystem) (group dcgm.GroupHandle, err error) {
	group, err = asking(ctx, e, "dcgmGroupCreate", func() (dcgm.GroupHandle, error) {
		return dcgm.CreateGroup(fmt.Sprintf("nhc-gpu-%d", os.Getpid()))
	})
	if err != nil {
		return group, err
	}
	for _, kind := range []dcgm.Field_Entity_Group{dcgm.FE_GPU, dcgm.FE_SWITCH} {
		if err = e.addAll(ctx, group, kind); err != nil && kind == dcgm.FE_GPU {
			return group, err
		}
	}
	err = e.telling(ctx, "dcgmHealthSet", func() error { return dcgm.HealthSet(group, dcgm.HealthSystem(systems)) })
	if err == nil {
		err = e.telling(ctx, "dcgmUpdateAllFields", dcgm.UpdateAllFields)
	}
	return group, err
}

func (e *libEngine) addAll(ctx context.Context, group dcgm.GroupHandle, kind dcgm.Field_Entity_Group) error {
	return e.telling(ctx, "dcgmGroupAddEntity", func() error {
		ids, err := dcgm.GetEntityGroupEntities(kind)
		for _, id := range ids {
			if err == nil {
				err = dcgm.AddEntityToGroup(group, kind, id)
			}
		}
		return err
	})
}
