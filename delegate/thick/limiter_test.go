package thick

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
)

// tasks returns a function for pool.runnable that returns count, or that the number is not known if
// count is negative. asked counts its calls.
func tasks(count int, asked *atomic.Int32) func() (int, bool) {
	return func() (int, bool) {
		asked.Add(1)
		return count, count >= 0
	}
}

// begin has count operations wait for a turn of l, in order, and then run until end.
func begin(l *limiter, count int, end <-chan struct{}) {
	for range count {
		go func() {
			_ = l.wait(context.Background())
			<-end
			l.release()
		}()
		synctest.Wait()
	}
}

func TestOperationsRunAtOnceAsLongAsTheProcessorsAreNotBusy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		tasks            int // runnable; negative: not known
		most             int
		dels, adds       int
		wantDel, wantAdd int
	}{
		{"those that wait for the kernel", 1, 8, 40, 0, 12, 0},
		{"as many as there are", 1, 8, 7, 0, 7, 0},
		{"busy processors", 2, 8, 40, 40, 4, 4},
		{"ADDs have what DELs leave", 1, 8, 7, 40, 7, 9},
		{"DELs come first, and keep no ADD from its turns", 1, 8, 40, 40, 12, 4},
		{"a limit that is configured", 0, 0, 40, 40, 4, 4},
		{"a system that does not tell", -1, 8, 40, 40, 4, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int32
				p := &pool{least: 4, most: tt.most, processors: 2, runnable: tasks(tt.tasks, &asked)}
				del, add, end := p.kind(0), p.kind(0), make(chan struct{})
				begin(add, tt.adds, end)
				begin(del, tt.dels, end)
				time.Sleep(10 * time.Second)
				nodetest.Equal(t, "running", []int{del.load().InFlight, add.load().InFlight}, []int{tt.wantDel, tt.wantAdd})
				close(end)
				synctest.Wait()
				time.Sleep(2 * window)
				nodetest.Equal(t, "at the end", []Load{del.load(), add.load()}, []Load{{}, {}})
				before := asked.Load()
				time.Sleep(time.Hour)
				nodetest.Equal(t, "asked while nobody waits", asked.Load()-before, 0)
			})
		})
	}
}

func TestFewerOperationsRunWhenTheProcessorsGetBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Int64
		busy.Store(1)
		p := &pool{least: 4, most: 8, processors: 2, runnable: func() (int, bool) { return int(busy.Load()), true }}
		l, end := p.kind(0), make(chan struct{})
		begin(l, 40, end)
		time.Sleep(time.Second)
		nodetest.Equal(t, "running", l.load().InFlight, 12)
		busy.Store(3)
		time.Sleep(time.Second)
		for range 10 {
			end <- struct{}{}
			synctest.Wait()
		}
		nodetest.Equal(t, "running", l.load().InFlight, 4)
		close(end)
	})
}

func TestTurnsComeInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 0)
		var got nodetest.Notes[string]
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 6 {
			go func() {
				ctx := ctx
				if i != 3 {
					ctx = context.Background()
				}
				if err := l.wait(ctx); err != nil {
					got.Note(fmt.Sprint(i, " ", err))
					return
				}
				got.Note(fmt.Sprint(i))
				time.Sleep(time.Second)
				l.release()
			}()
			synctest.Wait()
		}
		cancel()
		time.Sleep(time.Minute)
		nodetest.Equal(t, "turns", got.Taken(), []string{"0", "3 context canceled", "1", "2", "4", "5"})
	})
}
