package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/scratch"
)

// A lookup is the answer to the question which records are meant by a key.
type lookup struct {
	keys []scratch.Key // with records

	// unsure are names of networks whose records may be meant: nobody knows whether these
	// networks are still configured.
	unsure []string

	refused bool // an ADD of the key was refused, so that no record is meant
}

// lookUp returns the records that an operation on k is about. All operations ask here.
//
// That is the record of k. Without one, it is each record of this plugin that has the container
// and the interface of k under the name of a network that is certainly not configured any more:
// our network was renamed since. Or the record is not attached any more, or its container is
// dead. An attachment to a network that is still configured is another one.
func (m *Manager) lookUp(ctx context.Context, k scratch.Key, o *observer) (lookup, error) {
	own, err := m.store().Get(k)
	found := lookup{refused: err == nil && own.Value.Refused != nil}
	switch {
	case !notThere(err) && !found.refused:
		return lookup{keys: []scratch.Key{k}}, nil
	case m.Type == "", found.refused:
		return found, nil
	}
	rs, err := m.store().Container(ctx, k.ContainerID)
	ofAnother := func(err error) bool {
		e := (*scratch.Error)(nil)
		return errors.As(err, &e) && e.Key.IfName != k.IfName
	}
	if err := except(err, ofAnother); err != nil {
		return lookup{}, err
	}
	for _, r := range rs {
		if r.Key.IfName != k.IfName || r.Value.Type != m.Type || r.Value.Refused != nil {
			continue
		}
		configured, known := m.configured(k.Network, r.Key.Network)
		switch {
		case known && !configured, !r.State.Attached(), o.judge(r.Value.Delegates).Life == Dead:
			found.keys = append(found.keys, r.Key)
		case !known:
			found.unsure = append(found.unsure, strconv.Quote(r.Key.Network))
		}
	}
	return found, nil
}

// configured is [Manager.Configured].
func (m *Manager) configured(ours, other string) (configured, known bool) {
	if m.Configured == nil {
		return false, false
	}
	return m.Configured(ours, other)
}

// recordOf returns the record that k means, see [Manager.lookUp]: that of k unless another one is the only
// one that is meant.
func (m *Manager) recordOf(ctx context.Context, k scratch.Key, o *observer) (scratch.Record[record], error) {
	found, err := m.lookUp(ctx, k, o)
	if err != nil {
		return scratch.Record[record]{}, err
	}
	if len(found.keys) == 1 {
		k = found.keys[0]
	}
	return m.store().Get(k)
}

// fail returns why DEL cannot know whether it has anything to remove.
func (l lookup) fail(k scratch.Key) error {
	if len(l.keys) > 0 || len(l.unsure) == 0 {
		return nil
	}
	slices.Sort(l.unsure)
	return fault.New(types.ErrTryAgainLater, fmt.Sprintf(
		"network %q has no record of the attachment, and a record of network %s may be meant: it is not known whether that is still configured",
		k.Network, strings.Join(l.unsure, " or ")))
}
