package turns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	var all Turns[string]
	var seen []string
	visit := func(earlier string) { seen = append(seen, earlier) }
	ended, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a DEL")
	cancel(why)

	a, b, c := all.LineUp("c1", "a", visit), all.LineUp("c1", "b", visit), all.LineUp("c1", "c", visit)
	if want := []string{"a", "a", "b"}; !slices.Equal(seen, want) {
		t.Errorf("visited %q, want %q", seen, want)
	}
	other := all.LineUp("c2", "d", func(string) { t.Error("a turn of another container was visited") })
	for _, turn := range []*Turn[string]{a, other} {
		nodetest.OK(t, turn.Wait(t.Context()))
	}
	for _, turn := range []*Turn[string]{b, c} {
		if err := turn.Wait(ended); !errors.Is(err, why) {
			t.Errorf("%s waited in vain: %v, want %v", turn.value, err, why)
		}
	}
	b.Leave() // before its turn
	nodetest.Is(t, c.Wait(ended), why)
	a.Leave()
	nodetest.OK(t, c.Wait(t.Context()))
	c.Leave()
	other.Leave()
	if n := len(all.lines); n != 0 {
		t.Errorf("%d containers are remembered", n)
	}
}

func TestTurnsOfALane(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		turns, most int
		work        []int
		began       []int
	}{
		{"work has its turn until it ends", 2, 9, []int{300, 500, 100, 100, 0, 0}, []int{0, 0, 300, 400, 500, 500}},
		{"what takes longer than a second waits for somebody else", 2, 9, []int{9000, 9000, 9000, 500, 0}, []int{0, 0, 1000, 1000, 1500}},
		{"it goes on, and counts", 1, 2, []int{5000, 9000, 500, 0}, []int{0, 1000, 5000, 5500}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := NewLane(tt.turns, tt.most, 0)
				began := make([]int, len(tt.work))
				start := time.Now()
				var all sync.WaitGroup
				for i, work := range tt.work {
					all.Go(func() {
						leave, err := l.Enter(context.Background())
						if err != nil {
							t.Error(err)
							return
						}
						began[i] = int(time.Since(start).Milliseconds())
						time.Sleep(time.Duration(work) * time.Millisecond)
						leave()
					})
					synctest.Wait()
				}
				all.Wait()
				nodetest.Equal(t, "began, in ms", began, tt.began)
				nodetest.Equal(t, "left", []int{len(l.open), len(l.turns)}, []int{0, 0})
			})
		})
	}
}

func TestNobodyWaitsInALaneAfterTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLane(1, 1, 0)
		why := errors.New("a DEL")
		ctx, cancel := context.WithCancelCause(t.Context())
		var got nodetest.Notes[string]
		for i := range 6 {
			go func() {
				ctx := ctx
				if i != 3 {
					ctx = context.Background()
				}
				leave, err := l.Enter(ctx)
				got.Note(fmt.Sprint(i, " ", err))
				if err == nil {
					time.Sleep(time.Second / 2)
					leave()
				}
			}()
			synctest.Wait()
		}
		cancel(why)
		time.Sleep(time.Minute)
		synctest.Wait()
		nodetest.Equal(t, "turns", got.Taken(), []string{"0 <nil>", "3 a DEL", "1 <nil>", "2 <nil>", "4 <nil>", "5 <nil>"})
		nodetest.Equal(t, "left", []int{len(l.open), len(l.turns)}, []int{0, 0})
	})
}
