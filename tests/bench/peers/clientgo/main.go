// The peer on client-go: a shared informer and a workqueue, as in any controller. With nothing
// behind them, the queue holds keys and a worker looks each up. With a database named, the queue
// holds (key, version, status), and a worker writes each into it with an insert of its own, as
// durable as ours. A database is DRIVER:ADDRESS, with the driver sqlite3, postgres or mysql. It ends when it has been told of as many states as it was asked for and its
// queue is empty. Built by `cargo xtask bench` with Debian's packages.
package main

import (
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
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

// The servers are durable by their own settings.
const (
	durable = "?_journal_mode=WAL&_synchronous=FULL"
	table   = "CREATE TABLE states (object VARCHAR(255) NOT NULL, version VARCHAR(64) NOT NULL, status VARCHAR(255) NOT NULL, UNIQUE (version, object))"
	insert  = "INSERT INTO states (object, version, status) VALUES "
)

func open(name string) *sql.Stmt {
	driver, address, _ := strings.Cut(name, ":")
	places := "(?, ?, ?)"
	switch driver {
	case "sqlite3":
		address = "file:" + address + durable
	case "postgres":
		places = "($1, $2, $3)"
	}
	database, err := sql.Open(driver, address)
	fail(err)
	database.SetMaxOpenConns(1)
	_, err = database.Exec(table)
	fail(err)
	statement, err := database.Prepare(insert + places)
	fail(err)
	return statement
}

func main() {
	if len(os.Args) != 3 && len(os.Args) != 4 {
		fail(fmt.Errorf("usage: %s SERVER STATES [DATABASE]", os.Args[0]))
	}
	var statement *sql.Stmt
	if len(os.Args) == 4 {
		statement = open(os.Args[3])
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
