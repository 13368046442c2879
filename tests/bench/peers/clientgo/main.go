// The peer on client-go: a shared informer and a workqueue, as in any controller. With nothing
// behind them, the queue holds keys and a worker looks each up. With a database named, the queue
// holds (key, version, status), and a worker writes each into SQLite with an insert of its own,
// as durable as ours. It ends when it has been told of as many states as it was asked for and its
// queue is empty. Built by `cargo xtask bench` with Debian's packages.
package main

import (
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// What the queue holds where there is a database: no two are equal, so none is merged.
type state struct {
	key, version, status string
}

const (
	durable = "?_journal_mode=WAL&_synchronous=FULL"
	table   = "CREATE TABLE states (key TEXT NOT NULL, version TEXT NOT NULL, status TEXT NOT NULL, UNIQUE (version, key))"
	insert  = "INSERT INTO states (key, version, status) VALUES (?, ?, ?)"
)

func main() {
	if len(os.Args) != 3 && len(os.Args) != 4 {
		fail(fmt.Errorf("usage: %s SERVER STATES [DATABASE]", os.Args[0]))
	}
	var statement *sql.Stmt
	if len(os.Args) == 4 {
		database, err := sql.Open("sqlite3", "file:"+os.Args[3]+durable)
		fail(err)
		database.SetMaxOpenConns(1)
		_, err = database.Exec(table)
		fail(err)
		statement, err = database.Prepare(insert)
		fail(err)
	}
	states, err := strconv.ParseInt(os.Args[2], 10, 64)
	fail(err)
	client, err := rest.RESTClientFor(&rest.Config{
		Host:    os.Args[1],
		APIPath: "/apis",
		// No limit of its own: what is measured is how fast it reads.
		QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &batchv1.SchemeGroupVersion,
			NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
			ContentType:          "application/json",
		},
	})
	fail(err)

	queue := workqueue.New()
	var told int64
	enqueue := func(object interface{}) {
		key, err := cache.MetaNamespaceKeyFunc(object)
		fail(err)
		if statement == nil {
			queue.Add(key)
		} else {
			job := object.(*batchv1.Job)
			status := fmt.Sprintf("%d/%d/%d", job.Status.Active, job.Status.Succeeded, job.Status.Failed)
			queue.Add(state{key, job.ResourceVersion, status})
		}
		if atomic.AddInt64(&told, 1) == states {
			// Hands out what is still queued, then ends the workers.
			queue.ShutDown()
		}
	}
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(client, "jobs", "", fields.Everything()),
		&batchv1.Job{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object interface{}) { enqueue(object) },
		DeleteFunc: enqueue,
	})
	stop := make(chan struct{})
	go informer.Run(stop)
	for {
		item, ended := queue.Get()
		if ended {
			return
		}
		switch item := item.(type) {
		case state:
			_, err := statement.Exec(item.key, item.version, item.status)
			fail(err)
		case string:
			_, _, err := informer.GetIndexer().GetByKey(item)
			fail(err)
		}
		queue.Done(item)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client-go peer:", err)
		os.Exit(1)
	}
}
